"""Time to first token that the mesh adds over calling the worker directly.

`python -m bench.ttft [--rate 40] [--requests 800] [--rounds 3] [--json OUT]`. Two sim workers step every 1 ms.
Requests arrive as a Poisson process, slowly enough that nothing queues, and go in turn to the mesh (POST over
kept-alive connections, up to the first SSE event with a token) and straight to a worker (token ids on an Attach
stream, up to the first frame with a token), both from this one process. A round gives the p50 and p99 of either way;
what the mesh adds is the difference of the quantiles.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import time
from typing import TYPE_CHECKING, Any

import uvloop
from penstock.v1 import dispatch_pb2 as pb
from penstock.v1 import dispatch_pb2_grpc, engine_pb2

from bench import machine
from bench.machine import Spread, quantile, say
from bench.processes import Mesh, running
from bench.sse_client import KeptClient, request_bytes
from services.common import rpc
from services.common.frames import FinishReason, encode_tokens
from services.gateway.mesh.workers import WorkerLink

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence

    import grpc.aio

STEP_MS = 1.0
WORKERS = 2
TOKENS = 4
PROMPT_TOKENS = 24
CONNECTIONS_MAX = 32
ANSWER_S_MAX = 10.0
QUANTILES = {"p50": 0.5, "p99": 0.99}


def arrivals(count: int, rate_per_s: float, seed: int) -> list[float]:
    """`count` rising times in seconds from 0: a Poisson process."""
    draw, now, times = random.Random(seed), 0.0, []
    for _ in range(count):
        now += draw.expovariate(rate_per_s)
        times.append(now)
    return times


def figures(direct_s: Sequence[float], mesh_s: Sequence[float]) -> dict[str, float]:
    """Quantiles of both in milliseconds, and by how much the mesh's are higher."""
    found: dict[str, float] = {}
    for name, q in QUANTILES.items():
        direct, mesh = quantile(direct_s, q) * 1e3, quantile(mesh_s, q) * 1e3
        found |= {f"direct_{name}_ms": direct, f"mesh_{name}_ms": mesh, f"added_{name}_ms": mesh - direct}
    return found


class FirstToken:
    """The sink of one sequence of a worker called directly."""

    def __init__(self) -> None:
        self._sent_at = time.perf_counter()
        self.first_s: float | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_tokens(self, first_index: int, tokens: Sequence[int], logprobs: object) -> None:
        """See `workers.Sink`."""
        if self.first_s is None:
            self.first_s = time.perf_counter() - self._sent_at

    def on_finish(
        self, reason: FinishReason, prompt_tokens: int, cached_tokens: int, completion_tokens: int, detail: str
    ) -> None:
        """See `workers.Sink`."""
        if reason is FinishReason.LENGTH:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(ConnectionError(f"the worker ended it: {reason.name} {detail}"))

    def on_lost(self, why: str) -> None:
        """See `workers.Sink`."""
        self.ended.set_exception(ConnectionError(why))


class Direct:
    """Attach streams to every worker, as a gateway has them, used in turn."""

    def __init__(self, links: Sequence[WorkerLink]) -> None:
        self._links = links

    async def ask(self, number: int) -> float:
        """Seconds until the first token."""
        prompt = encode_tokens([number % 100 + 100, *range(100, 100 + PROMPT_TOKENS)])
        sampling = engine_pb2.SamplingParams(max_tokens=TOKENS, ignore_eos=True, temperature=1.0, top_p=1.0)
        submit = engine_pb2.Submit(
            response_id=f"direct-{number}", prompt=prompt, prompt_tokens=PROMPT_TOKENS + 1, choices=1, sampling=sampling
        )
        sink = FirstToken()
        self._links[number // 2 % len(self._links)].submit(submit, [sink])
        await sink.ended
        assert sink.first_s is not None
        return sink.first_s


class Http:
    """Kept-alive connections to the gateway."""

    def __init__(self, mesh: Mesh) -> None:
        self._port, self._key = mesh.http_port, mesh.key
        self._free: list[KeptClient] = []

    async def ask(self, number: int) -> float:
        """Seconds until the first token."""
        client = self._free.pop() if self._free else await self._connect()
        first, done = client.send(request_bytes(self._port, self._key, tokens=TOKENS, prompt=f"Question {number}?"))
        await done
        self._free.append(client)
        return first.result()

    async def warm(self) -> None:
        """Open the connections."""
        self._free = [await self._connect() for _ in range(CONNECTIONS_MAX)]

    def close(self) -> None:
        """Hang up."""
        for client in self._free:
            client.close()

    async def _connect(self) -> KeptClient:
        _, client = await asyncio.get_running_loop().create_connection(KeptClient, "127.0.0.1", self._port)
        return client


async def incarnations(router: str) -> list[tuple[str, int]]:
    """(address, incarnation) of every worker, from the grants of the router."""
    found: list[tuple[str, int]] = []
    hello = pb.GatewayMessage(hello=pb.GatewayHello(gateway_id="bench"))
    async with asyncio.timeout(ANSWER_S_MAX), rpc.channel(router) as channel:
        stub: dispatch_pb2_grpc.DispatchAsyncStub = dispatch_pb2_grpc.DispatchStub(channel)
        call = stub.Dispatch()
        await call.write(pb.GatewayBatch(messages=[hello]))
        while len(found) < WORKERS:
            acquire = pb.Acquire(
                request=len(found) + 1, response_id="bench", model="nano", prompt_tokens=PROMPT_TOKENS,
                max_tokens=TOKENS, choices=1, priority_class=pb.INTERACTIVE, tenant="bench", tenant_weight=1,
                excluded_workers=[incarnation for _, incarnation in found],
            )  # fmt: skip
            await call.write(pb.GatewayBatch(messages=[pb.GatewayMessage(acquire=acquire)]))
            granted = await _granted(call)
            found.append((granted.worker, granted.incarnation))
        call.cancel()  # the leases go with the stream
    return found


async def _granted(call: grpc.aio.StreamStreamCall[pb.GatewayBatch, pb.RouterBatch]) -> pb.Granted:
    async for batch in call:
        for message in batch.messages:
            if message.HasField("rejected"):
                raise RuntimeError(f"the router refused: {message.rejected.detail}")
            if message.HasField("granted"):
                return message.granted
    raise RuntimeError("the router closed the stream")


class _Over(Exception):
    """Ends the streams of `attached`."""


@contextlib.asynccontextmanager
async def attached(router: str) -> AsyncIterator[Direct]:
    """Attach streams to all workers."""
    links = [WorkerLink(*worker, "bench") for worker in await incarnations(router)]
    try:
        async with asyncio.TaskGroup() as tasks:
            for link in links:
                tasks.create_task(link.run())
            yield Direct(links)
            raise _Over
    except* _Over:
        pass


async def round_of(direct: Direct, http: Http, times: Sequence[float]) -> tuple[list[float], list[float]]:
    """Ask at `times`, in turn here and there; seconds to the first token of (direct, mesh)."""
    began = time.perf_counter()

    async def ask(number: int, at: float) -> float:
        await asyncio.sleep(began + at - time.perf_counter())
        async with asyncio.timeout(ANSWER_S_MAX):
            return await (http if number % 2 else direct).ask(number)

    async with asyncio.TaskGroup() as tasks:
        asked = [tasks.create_task(ask(number, at)) for number, at in enumerate(times)]
    taken = [task.result() for task in asked]
    return taken[0::2], taken[1::2]


async def run(mesh: Mesh, count: int, rate_per_s: float, rounds: int) -> dict[str, Spread]:
    """The spread of `figures` over `rounds` rounds, after a short one that warms up."""
    http, taken = Http(mesh), []
    await http.warm()
    async with attached(mesh.router) as direct:
        for number in range(rounds + 1):
            times = arrivals(count if number else count // 4, rate_per_s, seed=number)
            taken.append(figures(*await round_of(direct, http, times)))
            shown = ", ".join(f"{name} {value:.2f}" for name, value in taken[-1].items())
            say(f"  {f'round {number}' if number else 'warm-up'}: {shown}")
    http.close()
    return {name: Spread.of([each[name] for each in taken[1:]]) for name in taken[0]}


def rows(result: Mapping[str, Spread]) -> list[list[str]]:
    """Of the table."""
    return [[name, *(str(result[f"{way}_{name}_ms"]) for way in ("direct", "mesh", "added"))] for name in QUANTILES]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.ttft", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rate", type=float, default=40.0, help="requests per second, both ways together (default 40)")
    parser.add_argument("--requests", type=int, default=800, help="requests of a round, half each way (default 800)")
    parser.add_argument("--rounds", type=int, default=3, help="counted rounds (default 3)")
    parser.add_argument("--json", help="where to write the result (default bench/results/ttft.json)")
    args = parser.parse_args()
    with running() as processes:
        mesh = Mesh(processes, workers=WORKERS, step_ms=STEP_MS)
        mesh.wait_ready()
        result = uvloop.run(run(mesh, args.requests, args.rate, args.rounds))
    say("\nTime to first token in milliseconds, median (lowest to highest round)")
    machine.table(["", "worker directly", "through the mesh", "added"], rows(result))
    about: dict[str, Any] = {"step_ms": STEP_MS, "requests": args.requests, "rate_per_s": args.rate}
    out = {name: spread.as_json() for name, spread in result.items()}
    machine.write("ttft", {**about, "rounds": args.rounds, "ttft": out}, args.json)


if __name__ == "__main__":
    main()
