"""A gateway in this process, and small clients of its two doors."""

from __future__ import annotations

import asyncio
import io
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import aiohttp
from penstock.v1 import inference_pb2_grpc
from prometheus_client.parser import text_string_to_metric_families

from services.common import rpc
from services.common.tenants import hash_key
from services.gateway.app import Gateway
from services.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence
    from pathlib import Path

KEY, OTHER_KEY, CACHING_KEY, BATCH_KEY = "sk-dev", "sk-other", "sk-caching", "sk-batch"
TENANTS = f"""
tenants:
  - id: dev
    key_hashes: ["{hash_key(KEY)}"]
  - id: other
    key_hashes: ["{hash_key(OTHER_KEY)}"]
  - id: caching
    key_hashes: ["{hash_key(CACHING_KEY)}"]
    response_cache: true
  - id: batch
    key_hashes: ["{hash_key(BATCH_KEY)}"]
    max_class: batch
"""
READY_S = 30.0


@dataclass(slots=True)
class Event:
    """One server-sent event; `data` parsed, or the text `[DONE]`."""

    id: str | None
    data: Any

    @property
    def choice(self) -> dict[str, Any]:
        """The chunk's only choice."""
        choice: dict[str, Any] = self.data["choices"][0]
        return choice

    @property
    def text(self) -> str:
        """Its text: of a chat or of a text completion."""
        choice = self.choice
        text = choice["delta"].get("content") if "delta" in choice else choice["text"]
        return text or ""


@dataclass(slots=True)
class Answer:
    """A whole response."""

    status: int
    headers: Any
    body: Any = None
    events: list[Event] = field(default_factory=list)

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error object."""
        error: dict[str, Any] = self.body["error"]
        return error

    def text(self, choice: int = 0) -> str:
        """Streamed text of one choice."""
        parts = [e.text for e in self.events if e.data != "[DONE]" and e.data.get("choices")
                 and e.choice["index"] == choice]  # fmt: skip
        return "".join(parts)

    @property
    def done(self) -> bool:
        """The stream ended as it should."""
        return bool(self.events) and self.events[-1].data == "[DONE]"


def parse_events(data: bytes) -> list[Event]:
    """Events of a whole stream."""
    events = []
    for block in data.decode().split("\n\n"):
        ident, payload = None, None
        for line in block.splitlines():
            name, _, value = line.partition(": ")
            if name == "id":
                ident = value
            elif name == "data":
                payload = value if value == "[DONE]" else json.loads(value)
        if payload is not None:
            events.append(Event(ident, payload))
    return events


class Stream:
    """A streamed response being read. Its headers come with the first token."""

    def __init__(self, asked: asyncio.Task[aiohttp.ClientResponse]) -> None:
        self._asked = asked
        self.events: list[Event] = []

    async def response(self) -> aiohttp.ClientResponse:
        """Its head."""
        response = await self._asked
        assert response.status == 200, await response.text()
        return response

    async def close(self) -> None:
        """Close the connection, whatever was read of it."""
        if self._asked.done() and not self._asked.cancelled() and self._asked.exception() is None:
            self._asked.result().close()
        self._asked.cancel()
        await asyncio.wait({self._asked})

    async def next(self) -> Event:
        """The next event; AssertionError when the stream has ended."""
        response = await self.response()
        while True:
            lines = []
            while (line := await response.content.readline()) not in (b"\n", b""):
                lines.append(line)
            parsed = parse_events(b"".join(lines))
            if parsed:  # else a comment
                self.events += parsed
                return parsed[0]
            assert line, f"the stream ended after {len(self.events)} events"

    async def text(self) -> Event:
        """The next event with text."""
        while True:
            event = await self.next()
            if event.data != "[DONE]" and event.data.get("choices") and event.text:
                return event

    async def rest(self) -> Answer:
        """All of it, what was read before included."""
        response = await self.response()
        self.events += parse_events(await response.read())
        return Answer(response.status, response.headers, events=self.events)


class Door:
    """A running gateway and clients of it."""

    def __init__(self, gateway: Gateway, http: str, grpc: str, session: aiohttp.ClientSession) -> None:
        self.gateway, self.http, self.grpc, self.session = gateway, http, grpc, session
        self.base = f"http://{http}"
        self.channel = rpc.channel(grpc)
        self.inference: inference_pb2_grpc.InferenceAsyncStub = inference_pb2_grpc.InferenceStub(self.channel)

    async def post(self, path: str, body: Any, *, key: str = KEY, **headers: str) -> Answer:
        """POST `body` (bytes, or what becomes JSON); whole answer, events parsed where it is a stream."""
        async with self._post(path, body, key, headers) as response:
            data = await response.read()
            if response.content_type == "text/event-stream":
                return Answer(response.status, response.headers, events=parse_events(data))
            return Answer(response.status, response.headers, body=json.loads(data))

    async def chat(self, content: str = "hi", *, key: str = KEY, headers: dict[str, str] | None = None,
                   model: str = "m", **fields: Any) -> Answer:  # fmt: skip
        """A chat completion."""
        body = {"model": model, "messages": [{"role": "user", "content": content}], **fields}
        return await self.post("/v1/chat/completions", body, key=key, **(headers or {}))

    @asynccontextmanager
    async def stream(self, prompt: str = "hi", *, key: str = KEY, headers: dict[str, str] | None = None,
                     model: str = "m", **fields: Any) -> AsyncIterator[Stream]:  # fmt: skip
        """A streamed text completion; the connection closes at the end of the block."""
        body = {"model": model, "prompt": prompt, "stream": True, **fields}

        async def ask() -> aiohttp.ClientResponse:
            response: aiohttp.ClientResponse = await self._post("/v1/completions", body, key, headers or {})
            return response

        stream = Stream(asyncio.create_task(ask()))
        try:
            yield stream
        finally:
            await stream.close()

    def _post(self, path: str, body: Any, key: str, headers: dict[str, str]) -> Any:
        data = io.BytesIO(body if isinstance(body, bytes) else json.dumps(body).encode())
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json", **headers}
        return self.session.post(self.base + path, data=data, headers=headers)

    async def get(self, path: str, key: str = KEY) -> Answer:
        """GET a JSON page."""
        async with self.session.get(self.base + path, headers={"Authorization": f"Bearer {key}"}) as response:
            return Answer(response.status, response.headers, body=await response.json())

    async def metric(self, name: str, **labels: str) -> float:
        """Value of a sample, 0 when there is none yet."""
        async with self.session.get(self.base + "/metrics") as response:
            page = await response.text()
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    return sample.value
        return 0.0

    async def ready(self) -> None:
        """Until `/health/ready` says so."""
        await self.until_health(200)

    async def until_health(self, status: int) -> None:
        """Until `/health/ready` has that status."""
        async with asyncio.timeout(READY_S):
            while True:
                async with self.session.get(self.base + "/health/ready") as response:
                    if response.status == status:
                        return
                await asyncio.sleep(0.01)


async def until(condition: Callable[[], bool]) -> None:
    """Until another task has made `condition` true."""
    async with asyncio.timeout(READY_S):
        while not condition():  # noqa: ASYNC110  # what is waited for tells nobody
            await asyncio.sleep(0.005)


@asynccontextmanager
async def running_gateway(
    folder: Path, routers: Sequence[str], *, wait: bool = True, **settings: Any
) -> AsyncIterator[Door]:
    """A gateway in front of `routers`, ready unless `wait` is False."""
    tenants = folder / "tenants.yaml"
    tenants.write_text(TENANTS)
    gateway = Gateway(
        GatewaySettings(http_port=0, grpc_port=0, routers=tuple(routers), tenants=tenants, name="gateway-0", **settings)
    )
    async with asyncio.TaskGroup() as tasks:
        mine: list[asyncio.Task[Any]] = []
        addresses = await gateway.start(_Kept(tasks, mine))
        session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
        door = Door(gateway, addresses["http"], addresses["grpc"], session)
        try:
            if wait:
                await door.ready()
            yield door
        finally:
            await session.close()
            await door.channel.close()
            await gateway.stop()
            for task in mine:
                task.cancel()


class _Kept(asyncio.TaskGroup):
    """Creates tasks in another group and remembers them, to cancel them at the end."""

    def __init__(self, tasks: asyncio.TaskGroup, kept: list[asyncio.Task[Any]]) -> None:
        super().__init__()
        self._group, self._kept = tasks, kept

    def create_task(self, coro: Any, **names: Any) -> asyncio.Task[Any]:
        task = self._group.create_task(coro, **names)
        self._kept.append(task)
        return task
