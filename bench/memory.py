"""Resident memory of gateway and router as requests go by: does it stay?

`python -m bench.memory [--requests 2000,20000] [--clients 16] [--json OUT]`. Two sim workers step every 0.5 ms.
Short answers, every prompt another one: most are streamed, some not, some clients hang up after the first token, some
requests are refused. Memory is read when nothing runs.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import time
from typing import TYPE_CHECKING, Any

import uvloop

from bench import machine
from bench.machine import say
from bench.processes import Mesh, running
from bench.sse_client import KeptClient, request_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

STEP_MS = 0.5
WORKERS = 2
TOKENS = 4
TOKENS_HUNG_UP = 400
KINDS = ("stream",) * 14 + ("whole",) * 3 + ("hang up",) * 2 + ("refused",)
"""What each request of twenty is."""
ANSWER_S_MAX = 10.0
TOTAL_S_MAX = 400.0
SETTLE_S = 1.5
MIB = 1024 * 1024


def kind_of(number: int) -> str:
    """Of request `number`."""
    return KINDS[number % len(KINDS)]


def growth(first: float, last: float) -> float:
    """By which share of `first` `last` is larger."""
    return (last - first) / first


class Clients:
    """Some kept-alive connections, each with one request after the other."""

    def __init__(self, mesh: Mesh, clients: int) -> None:
        self._port, self._key, self._clients = mesh.http_port, mesh.key, clients
        self._numbers = itertools.count()
        self._opened: list[KeptClient | None] = [None] * clients

    async def send(self, count: int) -> None:
        """`count` more requests.

        Raises:
            ConnectionError: an answer was not the one expected.
        """
        numbers = iter([next(self._numbers) for _ in range(count)])
        async with asyncio.TaskGroup() as tasks:
            for at in range(self._clients):
                tasks.create_task(self._work(at, numbers))

    async def _work(self, at: int, numbers: Iterator[int]) -> None:
        for number in numbers:
            client = self._opened[at]
            if client is None or not client.open:
                loop = asyncio.get_running_loop()
                _, client = await loop.create_connection(KeptClient, "127.0.0.1", self._port)
                self._opened[at] = client
            async with asyncio.timeout(ANSWER_S_MAX):
                await self._one(client, number)

    async def _one(self, client: KeptClient, number: int) -> None:
        kind, prompt = kind_of(number), f"Question number {number}: what is {number} and {number * 7919 % 10007}?"
        tokens = TOKENS_HUNG_UP if kind == "hang up" else TOKENS
        more = {"stream": False} if kind == "whole" else {"temperature": -1} if kind == "refused" else {}
        request = request_bytes(self._port, self._key, tokens=tokens, prompt=prompt, **more)
        first, done = client.send(request)
        if kind == "hang up":
            await first
            client.close()
            with contextlib.suppress(ConnectionError):
                await done
        elif kind == "refused":
            with contextlib.suppress(ConnectionError):
                await done
                raise RuntimeError("a negative temperature was accepted")
        else:
            await done


async def run(mesh: Mesh, marks: Sequence[int], clients: int) -> dict[str, dict[str, float]]:
    """RSS in MiB of both processes after each of `marks` requests."""
    pids = {"gateway": mesh.gateway_pid, "router": mesh.router_pid}
    load, result, sent = Clients(mesh, clients), {}, 0
    async with asyncio.timeout(TOTAL_S_MAX):
        for mark in marks:
            began = time.monotonic()
            await load.send(mark - sent)
            rate = (mark - sent) / (time.monotonic() - began)
            sent = mark
            await asyncio.sleep(SETTLE_S)  # what hung up is cleaned up
            result[str(mark)] = sizes = {name: machine.rss_bytes(pid) / MIB for name, pid in pids.items()}
            shown = ", ".join(f"{name} {size:.1f} MiB" for name, size in sizes.items())
            say(f"  after {mark} requests ({rate:.0f}/s): {shown}")
    return result


def rows(result: Mapping[str, Mapping[str, float]]) -> list[list[str]]:
    """Of the table, with the growth from the first to the last mark."""
    names = list(next(iter(result.values())))
    out = []
    for name in names:
        sizes = [each[name] for each in result.values()]
        out.append([name, *(f"{size:.1f}" for size in sizes), f"{growth(sizes[0], sizes[-1]):+.1%}"])
    return out


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--requests", default="2000,5000,10000,20000", help="when to look (default %(default)s)")
    parser.add_argument("--clients", type=int, default=16, help="connections, one request at a time each (default 16)")
    parser.add_argument("--json", help="where to write the result (default bench/results/memory.json)")
    args = parser.parse_args()
    marks = sorted(int(mark) for mark in args.requests.split(","))
    with running() as processes:
        mesh = Mesh(processes, workers=WORKERS, step_ms=STEP_MS)
        mesh.wait_ready()
        result = uvloop.run(run(mesh, marks, args.clients))
    say("\nResident memory in MiB after so many requests")
    machine.table(["", *result, "growth"], rows(result))
    about: dict[str, Any] = {"step_ms": STEP_MS, "clients": args.clients, "rss_mib": result}
    machine.write("memory", about, args.json)


if __name__ == "__main__":
    main()
