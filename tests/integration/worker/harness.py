"""A worker in this process or as a process, a gateway's end of Attach, and a router's end of Register."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc.aio
from penstock.v1 import engine_pb2, engine_pb2_grpc, registry_pb2, registry_pb2_grpc

from services.common import rpc
from services.common.frames import ATTACH_METHOD, FinishReason, StepFrame, decode_frame, encode_tokens
from services.worker.app import Worker, load
from services.worker.settings import WorkerSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

ROOT = Path(__file__).parents[3]
NANO = str(ROOT / "models" / "nano")
WAIT_S = 20.0
"""Bound of every wait that a test makes."""


def sim_settings(**fields: Any) -> WorkerSettings:
    """A fast simulator on nano's tokenizer."""
    values = {"engine": "sim", "model": NANO, "served_model_name": "nano", "sim_step_ms": 1.0, "drain_s": 5.0, **fields}
    return WorkerSettings(_cli_parse_args=False, **values)


class _Over(Exception):
    """Ends the tasks of a worker in this process."""


@contextlib.asynccontextmanager
async def running(settings: WorkerSettings) -> AsyncIterator[tuple[Worker, str]]:
    """A worker in this process, and its address."""
    worker = await load(settings, ())
    try:
        async with asyncio.TaskGroup() as tasks:
            addresses = await worker.start(tasks)
            yield worker, addresses["grpc"]
            await worker.stop()
            raise _Over
    except* _Over:
        pass


def submit(sequence: int, tokens: Sequence[int] = (5, 6, 7, 8), **fields: Any) -> engine_pb2.Submit:
    """A good Submit of 8 greedy tokens; `sampling` is a dict here."""
    sampling = {"max_tokens": 8, "ignore_eos": True, **fields.pop("sampling", {})}
    values: dict[str, Any] = {
        "sequence": sequence,
        "response_id": f"resp-{sequence}",
        "attempt": 1,
        "prompt": encode_tokens(tokens),
        "prompt_tokens": len(tokens),
        "choices": 1,
        **fields,
    }
    return engine_pb2.Submit(sampling=engine_pb2.SamplingParams(**sampling), **values)


@dataclass
class Ended:
    """A finish row."""

    reason: FinishReason
    prompt: int
    cached: int
    completion: int
    detail: str


@dataclass
class Attached:
    """A gateway's stream, with what it has received."""

    call: grpc.aio.StreamStreamCall[engine_pb2.AttachBatch, StepFrame]
    frames: list[StepFrame] = field(default_factory=list)
    tokens: dict[int, list[int]] = field(default_factory=dict)
    ended: dict[int, Ended] = field(default_factory=dict)

    async def send(self, *submits: engine_pb2.Submit, aborts: Sequence[int] = ()) -> None:
        """One batch."""
        await self.call.write(engine_pb2.AttachBatch(submits=submits, aborts=aborts))

    async def read(self) -> StepFrame:
        """The next frame as it comes."""
        async with asyncio.timeout(WAIT_S):
            try:
                frame = await self.call.read()
            except grpc.aio.AioRpcError as error:
                raise EOFError(f"the stream broke: {error.code()} {error.details()}") from error
        if not isinstance(frame, StepFrame):
            raise EOFError(f"the stream ended: {await self.call.code()} {await self.call.details()}")
        return frame

    async def next(self) -> StepFrame:
        """The next frame, checked: indexes without gaps, one finish per handle, nothing after it."""
        frame = await self.read()
        self.frames.append(frame)
        at = 0
        for handle, first, count in zip(frame.sequence, frame.first_index, frame.count, strict=True):
            assert handle not in self.ended
            known = self.tokens.setdefault(handle, [])
            assert first == len(known)
            known.extend(frame.tokens[at : at + count])
            at += count
        for i, handle in enumerate(frame.finish_sequence):
            assert handle not in self.ended
            self.ended[handle] = Ended(
                FinishReason(frame.finish_reason[i]),
                frame.finish_prompt_tokens[i],
                frame.finish_cached_tokens[i],
                frame.finish_completion_tokens[i],
                frame.finish_detail[i],
            )
        return frame

    async def until_ended(self, *handles: int) -> None:
        """Read frames until each of these has ended."""
        while not set(handles) <= self.ended.keys():
            await self.next()

    async def run(self, wanted: engine_pb2.Submit) -> tuple[list[int], Ended]:
        """Submit one sequence and read it to its end."""
        await self.send(wanted)
        await self.until_ended(wanted.sequence)
        return self.tokens.get(wanted.sequence, []), self.ended[wanted.sequence]


@contextlib.asynccontextmanager
async def attached(
    address: str, incarnation: int, *, options: Sequence[tuple[str, int]] = ()
) -> AsyncIterator[Attached]:
    """A gateway on a connection of its own; leaves at the end of the block."""
    async with grpc.aio.insecure_channel(address, options=[*rpc.CHANNEL_OPTIONS, *options]) as channel:
        method: grpc.aio.StreamStreamMultiCallable[engine_pb2.AttachBatch, StepFrame] = channel.stream_stream(
            ATTACH_METHOD,
            request_serializer=engine_pb2.AttachBatch.SerializeToString,
            response_deserializer=decode_frame,
        )
        call = method()
        await call.write(
            engine_pb2.AttachBatch(hello=engine_pb2.AttachHello(gateway_id="test", incarnation=incarnation))
        )
        try:
            yield Attached(call)
        finally:
            call.cancel()


async def fetch_card(address: str, card_hash: str) -> dict[str, bytes]:
    """The card's files."""
    files: dict[str, bytes] = {}
    name = ""
    async with rpc.channel(address) as channel:
        stub: engine_pb2_grpc.EngineAsyncStub = engine_pb2_grpc.EngineStub(channel)
        async for piece in stub.FetchModelCard(engine_pb2.FetchModelCardRequest(card_hash=card_hash)):
            name = piece.file or name
            files[name] = files.get(name, b"") + piece.data
    return files


class FakeRouter(registry_pb2_grpc.RegistryServicer):
    """A router that answers registrations and writes down what it hears."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[registry_pb2.WorkerMessage | None] = asyncio.Queue()
        """None = the stream ended."""
        self.to_send: asyncio.Queue[registry_pb2.RegistryMessage] = asyncio.Queue()
        self.hang_up = asyncio.Event()

    async def Register(self, request_iterator: Any, context: Any) -> None:  # type: ignore[override]  # writes by context
        """One worker, until it leaves or `hang_up`."""
        try:
            self.messages.put_nowait(await anext(request_iterator))
            registered = registry_pb2.Registered(router_id="fake", incarnation=1)
            await context.write(registry_pb2.RegistryMessage(registered=registered))
            async with asyncio.TaskGroup() as tasks:
                hang_up = tasks.create_task(self.hang_up.wait())
                listen = tasks.create_task(self._listen(request_iterator))
                say = tasks.create_task(self._say(context))
                await asyncio.wait({hang_up, listen}, return_when=asyncio.FIRST_COMPLETED)
                hang_up.cancel()
                listen.cancel()
                say.cancel()
            self.hang_up.clear()
        finally:
            self.messages.put_nowait(None)

    async def _listen(self, request_iterator: Any) -> None:
        async for message in request_iterator:
            self.messages.put_nowait(message)

    async def _say(self, context: Any) -> None:
        while True:
            await context.write(await self.to_send.get())

    async def registration(self) -> registry_pb2.Registration:
        """The next registration; what comes before it is dropped."""
        async with asyncio.timeout(WAIT_S):
            while True:
                message = await self.messages.get()
                if message is not None and message.HasField("registration"):
                    return message.registration

    async def report(self) -> registry_pb2.LoadReport:
        """The next report; block events before it are dropped."""
        async with asyncio.timeout(WAIT_S):
            message = await self.messages.get()
            while message is not None and message.HasField("blocks"):
                message = await self.messages.get()
        assert message is not None
        return message.report

    async def blocks(self) -> registry_pb2.BlockEvents:
        """The next block events; reports before them are dropped."""
        async with asyncio.timeout(WAIT_S):
            message = await self.messages.get()
            while message is not None and not message.HasField("blocks"):
                message = await self.messages.get()
        assert message is not None
        return message.blocks


@contextlib.asynccontextmanager
async def fake_router(port: int = 0) -> AsyncIterator[tuple[FakeRouter, str]]:
    """A `FakeRouter` and its address."""
    router, server = FakeRouter(), grpc.aio.server(options=rpc.SERVER_OPTIONS)
    registry_pb2_grpc.add_RegistryServicer_to_server(router, server)
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    try:
        yield router, f"127.0.0.1:{bound}"
    finally:
        await server.stop(0)


@dataclass
class WorkerProcess:
    """`python -m services.worker` under its guardian."""

    guardian: asyncio.subprocess.Process
    pid: int
    address: str
    stderr: Path


@contextlib.asynccontextmanager
async def worker_process(folder: Path, *argv: str, start_s: float = 90.0) -> AsyncIterator[WorkerProcess]:
    """Start a worker and wait for its announcement; SIGKILL of the guardian at the end of the block."""
    announce, stderr = folder / "announce.json", folder / "stderr.log"
    announce.unlink(missing_ok=True)
    with stderr.open("wb") as log:
        guardian = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.worker", "--announce", str(announce), *argv, stderr=log, cwd=ROOT
        )
    try:
        async with asyncio.timeout(start_s):
            while not announce.exists():
                assert guardian.returncode is None, stderr.read_text()[-3000:]
                await asyncio.sleep(0.02)  # a file can't be awaited
        said = json.loads(announce.read_text())
        yield WorkerProcess(guardian, said["pid"], said["grpc"], stderr)
    finally:
        if guardian.returncode is None:
            guardian.kill()
        await guardian.wait()


def group_members(group: int) -> list[int]:
    """Living processes of a process group (Linux); zombies are dead."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state, _, pgrp = (entry / "stat").read_text().rpartition(") ")[2].split()[:3]
                if int(pgrp) == group and state not in "ZX":
                    found.append(int(entry.name))
    return sorted(found)
