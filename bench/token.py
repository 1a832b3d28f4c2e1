"""CPU of the gateway process per streamed token, beside Envoy's as a plain proxy of the same stream, in turn.

`python -m bench.token [--streams 64,256] [--rounds 5] [--envoy-concurrency 1] [--json OUT]`. Two sim workers step
every 20 ms, real HTTP clients read SSE, 128 tokens per stream, the whole gateway (validation, detokenization, JSON).
Envoy forwards a cheap mock that writes the same chunks at the same pace. Steady state only: from the moment all
streams have begun until before the first ends. Also the workers' CPU per token, and what is left of it without the
simulated engine, which runs alone in a third turn of every round (bench/sim_alone.py).
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvloop

from bench import envoy, machine
from bench.machine import Spread, say
from bench.processes import Mesh, Processes, free_port, running
from bench.sse_client import Counter, SseClient, request_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

WORKERS = 2
ROUND_TIMEOUT_S = 60
ATTEMPTS_MAX = 4
"""Of a round on a disturbed machine."""

FIGURES = {
    "gateway_us": "gateway", "envoy_us": "Envoy", "ratio": "gateway / Envoy", "router_us": "router",
    "workers_us": "workers", "engine_us": "engine alone", "worker_outside_engine_us": "workers - engine",
    "tokens_per_s": "tokens/s",
}  # fmt: skip
"""What a round measures, in the order of the table; CPU microseconds per token where the name ends in `_us`."""


@dataclass(frozen=True, slots=True)
class Load:
    """What every stream gets."""

    step_ms: float = 20.0
    tokens: int = 128
    margin_steps: int = 6
    """Left out after the last stream has begun, and before the first ends."""

    def seconds(self, steps: int) -> float:
        """Of `steps` steps."""
        return steps * self.step_ms / 1000


class DisturbedError(RuntimeError):
    """The machine stood still for so long that streams ended inside the measured window: its figures count nothing."""


@dataclass(frozen=True, slots=True)
class Target:
    """An HTTP server to stream from, and the processes to measure meanwhile."""

    port: int
    pids: Mapping[str, Sequence[int]]


async def measure(target: Target, load: Load, request: bytes, streams: int) -> dict[str, float]:
    """Run `streams` streams once; microseconds of CPU per token of each of `target.pids` in the steady state.

    Raises:
        DisturbedError: a stream ended inside the measured window.
        TimeoutError: not over after ROUND_TIMEOUT_S.
    """
    loop = asyncio.get_running_loop()
    counter = Counter(streams)
    async with asyncio.timeout(ROUND_TIMEOUT_S):
        clients = []
        for _ in range(streams):
            _, client = await loop.create_connection(lambda: SseClient(request, counter), "127.0.0.1", target.port)
            clients.append(client)
        await counter.all_begun.wait()
        await asyncio.sleep(load.seconds(load.margin_steps))
        before = {name: machine.cpu_s(pids) for name, pids in target.pids.items()}
        tokens, began = counter.tokens, time.monotonic()
        left = load.tokens - max(client.tokens for client in clients) - load.margin_steps
        await asyncio.sleep(load.seconds(left))
        used = {name: machine.cpu_s(pids) - before[name] for name, pids in target.pids.items()}
        tokens, seconds = counter.tokens - tokens, time.monotonic() - began
        ended = counter.ended
        await asyncio.gather(*(client.done for client in clients))
    if ended or not tokens:
        raise DisturbedError(f"{ended} of {streams} streams ended inside the measured window")
    return {f"{name}_us": cpu / tokens * 1e6 for name, cpu in used.items()} | {"tokens_per_s": tokens / seconds}


async def engine_alone(load: Load, sequences: int) -> float:
    """CPU microseconds per token of one simulated engine without a worker around it, in a process of its own."""
    command = [sys.executable, "-m", "bench.sim_alone", str(sequences), str(load.step_ms), str(load.tokens)]
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        async with asyncio.timeout(ROUND_TIMEOUT_S):
            answer, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    if process.returncode:
        raise RuntimeError(f"bench.sim_alone ended with {process.returncode}")
    return float(answer)


class Bench:
    """The mesh, and Envoy with its mock unless `envoy_concurrency` is 0."""

    def __init__(self, processes: Processes, load: Load, envoy_concurrency: int) -> None:
        self._load = load
        self._mesh = Mesh(processes, workers=WORKERS, step_ms=load.step_ms)
        self._envoy: Target | None = None
        if envoy_concurrency:
            upstream = free_port()
            mock = [sys.executable, "-m", "bench.mock_upstream", str(upstream), str(load.step_ms), str(load.tokens)]
            processes.start("mock", mock)
            pid, port = envoy.start(processes, upstream, envoy_concurrency)
            self._envoy = Target(port, {"envoy": [pid]})
        self._mesh.wait_ready()
        workers = [pid for guardian in self._mesh.worker_pids for pid in machine.family(guardian)]
        pids = {"gateway": [self._mesh.gateway_pid], "router": [self._mesh.router_pid], "workers": workers}
        self._gateway = Target(self._mesh.http_port, pids)
        self._request = request_bytes(self._mesh.http_port, self._mesh.key, tokens=load.tokens)

    async def round(self, streams: int, *, envoy_first: bool) -> dict[str, float]:
        """Gateway and Envoy in turn, then the engine; what FIGURES names, Envoy's only when it runs."""
        order = [target for target in (self._envoy, self._gateway) if target is not None]
        figures: dict[str, float] = {}
        for target in order if envoy_first else reversed(order):
            taken = await measure(target, self._load, self._request, streams)
            figures |= {name: value for name, value in taken.items() if target is self._gateway or name == "envoy_us"}
        if "envoy_us" in figures:
            figures["ratio"] = figures["gateway_us"] / figures["envoy_us"]
        figures["engine_us"] = await engine_alone(self._load, max(1, streams // WORKERS))
        figures["worker_outside_engine_us"] = figures["workers_us"] - figures["engine_us"]
        return figures


async def undisturbed(bench: Bench, streams: int, *, envoy_first: bool) -> dict[str, float]:
    """One round, again when it was disturbed.

    Raises:
        DisturbedError: ATTEMPTS_MAX times.
    """
    for left in range(ATTEMPTS_MAX - 1, -1, -1):
        try:
            return await bench.round(streams, envoy_first=envoy_first)
        except DisturbedError as error:
            if not left:
                raise
            say(f"  once more, something else keeps this machine busy: {error}")
    raise AssertionError("unreachable")


async def run(bench: Bench, sizes: Sequence[int], rounds: int) -> dict[str, dict[str, Spread]]:
    """The spread of each figure over `rounds` rounds, after one that warms up, for each number of streams."""
    result = {}
    for streams in sizes:
        taken = []
        for number in range(rounds + 1):
            taken.append(await undisturbed(bench, streams, envoy_first=number % 2 == 0))
            shown = ", ".join(f"{title} {taken[-1][name]:.2f}" for name, title in FIGURES.items() if name in taken[-1])
            say(f"  {streams} streams, {f'round {number}' if number else 'warm-up'}: {shown}")
        result[str(streams)] = summary(taken[1:])
    return result


def summary(rounds: Sequence[Mapping[str, float]]) -> dict[str, Spread]:
    """The spread of every figure; a ratio is formed within a round, not between medians."""
    return {name: Spread.of([figures[name] for figures in rounds]) for name in FIGURES if name in rounds[0]}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.token", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--streams", default="64,256", help="numbers of streams, comma-separated (default 64,256)")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds of each (default 5)")
    parser.add_argument(
        "--envoy-concurrency", type=int, default=1, help="Envoy's worker threads; 1 is its cheapest, 0 = no Envoy"
    )
    parser.add_argument("--json", help="where to write the result (default bench/results/token.json)")
    args = parser.parse_args()
    load, sizes = Load(), [int(size) for size in args.streams.split(",")]
    with running() as processes:
        result = uvloop.run(run(Bench(processes, load, args.envoy_concurrency), sizes, args.rounds))
    say("\nCPU microseconds per token, median (lowest to highest round)")
    names = [name for name in FIGURES if name in next(iter(result.values()))]
    rows = [[FIGURES[name], *(str(spreads[name]) for spreads in result.values())] for name in names]
    machine.table(["", *(f"{size} streams" for size in result)], rows)
    out: dict[str, Any] = {size: {name: s.as_json() for name, s in spreads.items()} for size, spreads in result.items()}
    about = {"step_ms": load.step_ms, "tokens_per_stream": load.tokens, "rounds": args.rounds, "workers": WORKERS}
    machine.write("token", {**about, "envoy_concurrency": args.envoy_concurrency, "streams": out}, args.json)


if __name__ == "__main__":
    main()
