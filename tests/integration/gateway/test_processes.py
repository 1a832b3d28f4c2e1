"""Real processes that are killed or told to stop, with real sim workers behind them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import aiohttp

from tests.integration.gateway.doors import KEY, TENANTS, Door, parse_events, running_gateway, until
from tests.integration.gateway.mesh import process, running_router, sim_worker

if TYPE_CHECKING:
    from pathlib import Path

    from services.router.app import Router
    from tests.integration.gateway.doors import Answer
    from tests.integration.gateway.mesh import Process

PROMPT = "How does water come to the turbine?"
LONG: dict[str, Any] = {"max_tokens": 120, "ignore_eos": True}


def busy_worker(router: Router, workers: dict[str, Process]) -> Process:
    """The worker that holds a lease."""
    assert router._hub is not None
    names = [worker.info.worker_id for worker in router._hub.scheduler.workers().values() if worker.leases]
    assert len(names) == 1
    return workers[names[0]]


async def two_workers(stack: AsyncExitStack, folder: Path) -> tuple[Door, Router, dict[str, Process]]:
    """A gateway and a router here, two sim workers in processes."""
    router, address = await stack.enter_async_context(running_router())
    names = ("worker-0", "worker-1")
    workers = {name: stack.enter_context(sim_worker(folder, name, address, step_ms=10)) for name in names}
    for worker in workers.values():
        await worker.ready()
    door = await stack.enter_async_context(running_gateway(folder, [address]))
    await until(lambda: router._hub is not None and len(router._hub.scheduler.workers()) == len(names))
    return door, router, workers


def same_stream(answer: Answer, whole: Answer) -> None:
    """A stream that was moved is the one that was not, with its ids rising by the token."""
    assert answer.done, answer.events[-1]
    for choice in range(whole.body["choices"][-1]["index"] + 1):
        assert answer.text(choice) == whole.body["choices"][choice]["text"]
    numbers = [int(event.id) for event in answer.events if event.id is not None]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == whole.body["usage"]["completion_tokens"]


async def test_a_stream_whose_worker_is_killed_is_the_same_stream(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        door, router, workers = await two_workers(stack, tmp_path)
        async with door.stream(PROMPT, **LONG) as stream:
            for _ in range(10):
                await stream.text()
            busy_worker(router, workers).signal(signal.SIGKILL)
            answer = await stream.rest()
        whole = await door.post("/v1/completions", {"model": "m", "prompt": PROMPT, **LONG})
        same_stream(answer, whole)
        assert "\ufffd" not in answer.text() or "\ufffd" in whole.body["choices"][0]["text"]


async def test_many_streams_survive_a_killed_worker(tmp_path: Path) -> None:
    async def one(door: Door, number: int, begun: asyncio.Semaphore) -> Answer:
        async with door.stream(f"{PROMPT} {number}", **LONG) as stream:
            for _ in range(5):
                await stream.text()
            begun.release()
            return await stream.rest()

    async with AsyncExitStack() as stack:
        door, _, workers = await two_workers(stack, tmp_path)
        begun = asyncio.Semaphore(0)
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(one(door, number, begun)) for number in range(12)]
            for _ in streams:
                await begun.acquire()
            workers["worker-0"].signal(signal.SIGKILL)
        bodies = [{"model": "m", "prompt": f"{PROMPT} {number}", **LONG} for number in range(len(streams))]
        wholes = await asyncio.gather(*(door.post("/v1/completions", body) for body in bodies))
        for stream, whole in zip(streams, wholes, strict=True):
            same_stream(stream.result(), whole)
        assert await door.metric("penstock_gateway_generations") == 0


async def test_a_hung_worker_does_not_outlast_the_deadline(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        door, router, workers = await two_workers(stack, tmp_path)
        async with door.stream(PROMPT, headers={"x-request-timeout-ms": "1500"}, **LONG) as stream:
            await stream.text()
            hung = busy_worker(router, workers).pid
            os.kill(hung, signal.SIGSTOP)
            answer = await stream.rest()
            os.kill(hung, signal.SIGCONT)
        assert answer.events[-1].data["error"]["code"] == "deadline_exceeded"


class Outside:
    """A gateway process and a client of it."""

    def __init__(self, process: Process, http: str, session: aiohttp.ClientSession) -> None:
        self.process, self.base, self._session = process, f"http://{http}", session

    async def ask(self, **fields: Any) -> aiohttp.ClientResponse:
        """A completion."""
        body = {"model": "m", "prompt": PROMPT, **fields}
        headers = {"Authorization": f"Bearer {KEY}"}
        return await self._session.post(f"{self.base}/v1/completions", json=body, headers=headers)

    async def until_health(self, status: int) -> None:
        """Until `/health/ready` has that status."""
        async with asyncio.timeout(30):
            while True:
                async with self._session.get(f"{self.base}/health/ready") as response:
                    if response.status == status:
                        return
                await asyncio.sleep(0.02)

    @property
    def stopped(self) -> dict[str, Any]:
        """The log line of the end."""
        lines = [json.loads(line) for line in self.process.log.splitlines() if line.startswith("{")]
        found: dict[str, Any] = next(line for line in lines if line["message"] == "stopped")
        return found


async def gateway_process(stack: AsyncExitStack, folder: Path, *flags: str, step_ms: float) -> Outside:
    """A gateway in a process, in front of one sim worker."""
    _, address = await stack.enter_async_context(running_router())
    worker = stack.enter_context(sim_worker(folder, "worker-0", address, step_ms=step_ms))
    tenants = folder / "tenants.yaml"
    tenants.write_text(TENANTS)
    gateway = stack.enter_context(
        process(
            folder, "gateway-0", "gateway", "--http-port", "0", "--grpc-port", "0", "--routers", address,
            "--tenants", str(tenants), "--name", "gateway-0", *flags,
        )
    )  # fmt: skip
    await worker.ready()
    addresses = await gateway.ready()
    session = await stack.enter_async_context(aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=60)))
    outside = Outside(gateway, addresses["http"], session)
    await outside.until_health(200)
    return outside


async def test_sigterm_lets_a_stream_end_and_takes_no_new_one(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        gateway = await gateway_process(stack, tmp_path, step_ms=20)
        running = await gateway.ask(stream=True, **LONG)
        first = await running.content.readuntil(b"\n\n")
        gateway.process.signal(signal.SIGTERM)
        await gateway.until_health(503)
        refused = await gateway.ask()
        assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
        assert (await refused.json())["error"]["code"] == "service_unavailable"
        events = parse_events(first + await running.read())
        assert events[-1].data == "[DONE]"
        assert events[-2].choice["finish_reason"] == "length"
        assert await gateway.process.ended() == 0
        assert gateway.stopped["cut"] == 0


async def test_what_outlasts_the_drain_is_cut_and_counted(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        gateway = await gateway_process(stack, tmp_path, "--drain-s", "0.3", step_ms=500)
        running = await gateway.ask(stream=True, **LONG)
        await running.content.readuntil(b"\n\n")
        gateway.process.signal(signal.SIGTERM)
        assert await gateway.process.ended() == 0
        assert gateway.stopped["cut"] == 1
        running.close()


async def test_a_second_sigterm_does_not_wait(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        gateway = await gateway_process(stack, tmp_path, "--drain-s", "3600", step_ms=500)
        running = await gateway.ask(stream=True, **LONG)
        await running.content.readuntil(b"\n\n")
        gateway.process.signal(signal.SIGTERM)
        await gateway.until_health(503)
        gateway.process.signal(signal.SIGTERM)
        assert await gateway.process.ended() == 0
        assert gateway.stopped["cut"] == 1
        running.close()
