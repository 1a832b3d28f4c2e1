"""The router's cost: a scheduler decision alone, CPU per request through real gRPC, and memory after many requests.

    python -m bench.router [--requests 20000] [--rate 1000] [--json FILE]

Requests arrive one by one, evenly spaced, one gRPC message each, which is the worst case: under a burst messages share
a batch. A request is Acquire, Granted, Release, and its place in the reports of fake workers, which report as real
ones do (every 100 ms, with the leases that started and ended).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import random
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import uvloop
from penstock.v1 import dispatch_pb2, dispatch_pb2_grpc, registry_pb2, registry_pb2_grpc

from bench.machine import cpu_s, quantile, rss_bytes, say, table, write
from bench.processes import START_S, running
from services.common.blocks import HASH_BYTES, split
from services.common.rpc import channel
from services.router.config import SchedulerConfig
from services.router.events import Event, Granted
from services.router.prefix.feed import BlockUpdate
from services.router.requests import Request
from services.router.scheduler import Scheduler
from services.router.workers import Registration, Report

if TYPE_CHECKING:
    from bench.processes import Processes

DECISIONS = 4_000
BLOCKS = 1_000_000
SEQUENCES = 32
HOLD_S = 0.02
"""How long a lease is held: the shorter, the less the fake worker's batch matters."""
REPORT_S = 0.1
RSS_AFTER = 2_000
SLICES = 5
TARGET_US = 300.0
TARGET_RSS = 1.10


def _fleet(workers: int) -> Scheduler:
    scheduler = Scheduler(SchedulerConfig(queue_requests_max=100_000), incarnation=1, now=0.0)
    for number in range(1, workers + 1):
        info = Registration(
            worker_id=f"w{number}",
            incarnation=number,
            address=f"host:{number}",
            models=("m",),
            card_hash="card",
            context_length=131_072,
            max_sequences=SEQUENCES,
            kv_blocks=32_768,
            block_size=16,
            report=Report(free_blocks=32_768),
            reports_blocks=True,
        )
        scheduler.worker_registered(0.0, info)
    return scheduler


def decide_prefix(workers: int) -> dict[str, Any]:
    """Microseconds of an `acquire` with a prompt of 64 blocks, a million blocks indexed, on a fleet with room.

    Of three prompts one is new, one is held by one worker, one shares its first 16 blocks with every tenth worker.
    """
    scheduler, draw = _fleet(workers), random.Random(workers)
    chains = [draw.randbytes(64 * HASH_BYTES) for _ in range(BLOCKS // 64)]
    shared = draw.randbytes(16 * HASH_BYTES)
    stored: list[list[bytes]] = [[] for _ in range(workers)]
    for number, chain in enumerate(chains):
        stored[number % workers] += split(chain)
    for incarnation in range(1, workers + 1):
        own = stored[incarnation - 1] + (split(shared) if incarnation % 10 == 0 else [])
        scheduler.worker_blocks(0.0, incarnation, BlockUpdate(1, snapshot_begin=True, snapshot_end=True, stored=own))
    now, took = 1.0, list[float]()
    gc.collect()
    for number in range(1, DECISIONS + 1):
        now += 0.001
        kind = number % 3
        hashes = draw.randbytes(64 * HASH_BYTES) if kind == 0 else draw.choice(chains)
        hashes = shared + hashes[len(shared) :] if kind == 1 else hashes
        request = Request(1, number, "m", 1_040, 256, arrived=now, block_hashes=hashes)
        began = time.thread_time()
        events = scheduler.acquire(now, request)
        took.append((time.thread_time() - began) * 1e6)
        granted = next(event for event in events if isinstance(event, Granted))
        report = Report(running=1, free_blocks=32_000, leases_started=(granted.lease,))
        scheduler.worker_reported(now, granted.incarnation, report)
        scheduler.release(now, 1, granted.lease)
        ended = Report(free_blocks=32_768, leases_ended=(granted.lease,))
        scheduler.worker_reported(now, granted.incarnation, ended)
    p50, p99 = quantile(took, 0.5), quantile(took, 0.99)
    kind_of = f"acquire, 64 blocks, {len(scheduler.prefixes.index):,} indexed"
    return {"workers": workers, "decision": kind_of, "p50_us": round(p50, 1), "p99_us": round(p99, 1)}


def decide(workers: int, *, saturated: bool) -> dict[str, Any]:
    """Microseconds of an `acquire` that finds room (half-loaded fleet), or of a `release` that grants the next.

    Saturated: every slot is taken and 1,000 requests wait. CPU time of the thread, so that neighbours don't count.
    """
    scheduler, draw = _fleet(workers), random.Random(workers)
    leases: deque[int] = deque()
    number, now, took = 0, 1.0, list[float]()

    def keep(events: list[Event]) -> None:
        leases.extend(event.lease for event in events if isinstance(event, Granted))

    def request() -> Request:
        nonlocal number, now
        number, now = number + 1, now + 0.001
        return Request(1, number, "m", draw.randrange(16, 4096), draw.randrange(16, 512), arrived=now)

    for _ in range(workers * SEQUENCES + 1_000 if saturated else workers * SEQUENCES // 2):
        keep(scheduler.acquire(now, request()))
    for _ in range(DECISIONS):
        new = request()
        if saturated:
            keep(scheduler.acquire(now, new))
            began = time.thread_time()
            events = scheduler.release(now, 1, leases.popleft())
        else:
            keep(scheduler.release(now, 1, leases.popleft()))
            began = time.thread_time()
            events = scheduler.acquire(now, new)
        took.append((time.thread_time() - began) * 1e6)
        keep(events)
    p50, p99 = quantile(took, 0.5), quantile(took, 0.99)
    kind = "release that grants the next of 1,000" if saturated else "acquire, half-loaded"
    return {"workers": workers, "decision": kind, "p50_us": round(p50, 1), "p99_us": round(p99, 1)}


class FakeWorker:
    """One Register stream that reports the leases it is told of."""

    def __init__(self, address: str, number: int) -> None:
        self._channel = channel(address)
        self._number = number
        self.running = 0
        self.started: list[int] = []
        self.ended: list[int] = []

    async def run(self, ready: asyncio.Event) -> None:
        """Register, say so, report until cancelled."""
        stub: registry_pb2_grpc.RegistryAsyncStub = registry_pb2_grpc.RegistryStub(self._channel)
        call = stub.Register(wait_for_ready=True)
        registration = registry_pb2.Registration(
            worker_id=f"w{self._number}", incarnation=self._number, address=f"127.0.0.1:{self._number}",
            models=["m"], card_hash="card", context_length=8192, max_sequences=4096, kv_blocks=1_000_000,
            kv_block_size=16, engine="sim",
        )  # fmt: skip
        await call.write(registry_pb2.WorkerMessage(registration=registration))
        await call.read()
        ready.set()
        while True:
            await asyncio.sleep(REPORT_S)
            report = registry_pb2.LoadReport(
                running=self.running, free_kv_blocks=1_000_000, leases_started=self.started, leases_ended=self.ended,
                steps=[registry_pb2.StepSample(step_ms=20.0, prefill_tokens=64, running=self.running)] * 5,
            )  # fmt: skip
            self.started, self.ended = [], []
            await call.write(registry_pb2.WorkerMessage(report=report))

    async def close(self) -> None:
        """Hang up."""
        await self._channel.close()


class FakeGateway:
    """One Dispatch stream that asks, holds for a moment, releases."""

    def __init__(self, address: str, name: str, workers: dict[int, FakeWorker]) -> None:
        self._channel = channel(address)
        stub: dispatch_pb2_grpc.DispatchAsyncStub = dispatch_pb2_grpc.DispatchStub(self._channel)
        self._call = stub.Dispatch(wait_for_ready=True)
        self._name = name
        self._workers = workers
        self._to_release: deque[tuple[float, int, int]] = deque()
        self._sent = 0
        self.ended = 0

    async def open(self) -> None:
        """Say hello."""
        hello = dispatch_pb2.GatewayHello(gateway_id=self._name)
        await self._send(dispatch_pb2.GatewayMessage(hello=hello))

    async def close(self) -> None:
        """Hang up."""
        self._call.cancel()
        await self._channel.close()

    async def drive(self, count: int, rate: float) -> None:
        """`count` requests, `rate` a second, until each has ended."""
        until, began, first = self.ended + count, time.perf_counter(), self._sent
        async with asyncio.timeout(30 + 3 * count / rate):
            while self.ended < until:
                now = time.perf_counter()
                due = first + min(count, int((now - began) * rate) + 1)
                while self._sent < due:
                    await self._acquire()
                await self._release(now)
                await asyncio.sleep(0.5 / rate)

    async def _acquire(self) -> None:
        self._sent += 1
        acquire = dispatch_pb2.Acquire(
            request=self._sent, response_id=f"chatcmpl-{self._sent:024x}", model="m", prompt_tokens=1024,
            max_tokens=256, choices=1, tenant="tenant", block_hashes=b"0123456789abcdef" * 64, deadline_ms=60_000,
        )  # fmt: skip
        await self._send(dispatch_pb2.GatewayMessage(acquire=acquire))

    async def _release(self, now: float) -> None:
        while self._to_release and self._to_release[0][0] <= now:
            _, lease, incarnation = self._to_release.popleft()
            worker = self._workers[incarnation]
            worker.running -= 1
            worker.ended.append(lease)
            self.ended += 1
            release = dispatch_pb2.Release(lease=lease, completion_tokens=256, outcome=dispatch_pb2.FINISHED)
            await self._send(dispatch_pb2.GatewayMessage(release=release))

    async def _send(self, message: dispatch_pb2.GatewayMessage) -> None:
        await self._call.write(dispatch_pb2.GatewayBatch(messages=[message]))

    async def read(self) -> None:
        """Take grants until cancelled."""
        while isinstance(batch := await self._call.read(), dispatch_pb2.RouterBatch):
            for message in batch.messages:
                if message.HasField("rejected"):
                    raise RuntimeError(f"the router refused a request: {message.rejected.detail}")
                if message.HasField("granted"):
                    granted = message.granted
                    worker = self._workers[granted.incarnation]
                    worker.running += 1
                    worker.started.append(granted.lease)
                    self._to_release.append((time.perf_counter() + HOLD_S, granted.lease, granted.incarnation))
        raise RuntimeError("the router ended the stream")


async def load(pid: int, address: str, requests: int, rate: float) -> dict[str, Any]:
    """CPU of the router per request, in slices, and its memory after 2,000 and after all."""
    workers = {number: FakeWorker(address, number) for number in range(1, 5)}
    ready = [asyncio.Event() for _ in workers]
    async with asyncio.TaskGroup() as tasks:
        background = [tasks.create_task(w.run(event)) for w, event in zip(workers.values(), ready, strict=True)]
        async with asyncio.timeout(START_S):
            await asyncio.gather(*(event.wait() for event in ready))
        gateway = FakeGateway(address, "gateway-0", workers)
        await gateway.open()
        background.append(tasks.create_task(gateway.read()))
        await gateway.drive(RSS_AFTER, rate)
        rss_first = rss_bytes(pid)
        idle = cpu_s([pid])
        await asyncio.sleep(2.0)
        idle = (cpu_s([pid]) - idle) / 2.0
        slices = []
        for _ in range(SLICES):
            count, before = (requests - RSS_AFTER) // SLICES, cpu_s([pid])
            await gateway.drive(count, rate)
            slices.append((cpu_s([pid]) - before) / count * 1e6)
        rss_last = rss_bytes(pid)
        for task in background:
            task.cancel()
    await gateway.close()
    for worker in workers.values():
        await worker.close()
    return {
        "requests": gateway.ended,
        "rate_per_s": rate,
        "workers": len(workers),
        "cpu_us_per_request": {
            "median": round(quantile(slices, 0.5), 1),
            "low": round(min(slices), 1),
            "high": round(max(slices), 1),
        },
        "idle_cpu_ms_per_s": round(idle * 1e3, 2),
        "rss_mib_after_2000": round(rss_first / 2**20, 2),
        "rss_mib_after_all": round(rss_last / 2**20, 2),
        "rss_growth": round(rss_last / rss_first, 4),
    }


async def _started(processes: Processes, router: list[str]) -> tuple[int, str]:
    announced = processes.folder / "router.json"
    command = [sys.executable, "-m", "services.router", "--port", "0", "--announce", str(announced), *router]
    pid = processes.start("router", command)
    async with asyncio.timeout(START_S):
        while not announced.exists():
            processes.check()
            await asyncio.sleep(0.05)
    return pid, str(json.loads(announced.read_text())["grpc"])


async def _load(requests: int, rate: float) -> dict[str, Any]:
    with running() as processes:
        pid, address = await _started(processes, ["--log-level", "warning"])
        return await load(pid, address, requests, rate)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(prog="python -m bench.router", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000, help="through gRPC, the first 2,000 to warm up")
    parser.add_argument("--rate", type=float, default=1_000.0, help="requests a second")
    parser.add_argument("--json", help="result file; default bench/results/router.json")
    args = parser.parse_args()
    if not RSS_AFTER + SLICES <= args.requests <= 1_000_000 or not 1.0 <= args.rate <= 10_000.0:
        parser.error(f"--requests is {RSS_AFTER + SLICES} to 1,000,000, --rate 1 to 10,000")
    decisions = [decide(workers, saturated=kind) for workers in (100, 1_000) for kind in (False, True)]
    decisions += [decide_prefix(workers) for workers in (100, 1_000)]
    table(
        ("workers", "decision (pure scheduler)", "p50 us", "p99 us"),
        [(str(row["workers"]), row["decision"], f"{row['p50_us']:.1f}", f"{row['p99_us']:.1f}") for row in decisions],
    )
    say()
    with contextlib.suppress(KeyboardInterrupt):
        result = uvloop.run(_load(args.requests, args.rate))
        cpu = result["cpu_us_per_request"]
        spread = f"{cpu['median']:.0f} ({cpu['low']:.0f} to {cpu['high']:.0f})"
        growth = f"{result['rss_mib_after_2000']:.1f} -> {result['rss_mib_after_all']:.1f}, x{result['rss_growth']:.3f}"
        table(
            ("router process", "measured", "target"),
            [
                ("CPU per request, us, median of 5", spread, f"<= {TARGET_US:.0f}"),
                (f"RSS after 2,000 and {result['requests']:,} requests, MiB", growth, f"<= x{TARGET_RSS:.2f}"),
                ("CPU of reports alone, ms per s", f"{result['idle_cpu_ms_per_s']:.1f}", ""),
            ],
        )
        met = cpu["median"] <= TARGET_US and result["rss_growth"] <= TARGET_RSS
        write("router", {"decisions": decisions, "process": result, "met": met}, args.json)


if __name__ == "__main__":
    main()
