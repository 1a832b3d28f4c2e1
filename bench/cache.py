"""What a hit of the response cache costs at the gateway: from the cache service's process, and from Redis.

`python -m bench.cache [--prompts 300] [--json OUT]`. Every prompt is answered once by a simulated worker. Then the
cache service is killed and started anew: the first request of each prompt is a hit from Redis, the second one from the
process. "gateway" is from the request's arrival there to its first text (`Server-Timing`), "client" the whole request
over a kept connection. One request at a time.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import time
from typing import TYPE_CHECKING

import aiohttp
import uvloop

from bench import machine
from bench.machine import quantile, say
from bench.processes import Mesh, Processes, free_port, running

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKENS = 64
BOUNDS_MS = {"process": 1.0, "redis": 2.0}
"""For the median at the gateway."""
Times = tuple[list[float], list[float]]


async def ask(session: aiohttp.ClientSession, mesh: Mesh, number: int) -> tuple[str, float, float]:
    """The cache's word, seconds to the first text at the gateway, seconds of the whole request here."""
    body = {
        "model": "nano", "temperature": 0, "cache": True, "max_tokens": TOKENS, "ignore_eos": True,
        "messages": [{"role": "user", "content": f"Question {number}: how does a valve work?"}],
    }  # fmt: skip
    began = time.perf_counter()
    url = f"http://127.0.0.1:{mesh.http_port}/v1/chat/completions"
    async with session.post(url, json=body, headers={"Authorization": f"Bearer {mesh.key}"}) as answer:
        text = await answer.text()
        took = time.perf_counter() - began
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {text}")
        first_ms = answer.headers["Server-Timing"].rpartition("ttft;dur=")[2]
        return answer.headers["x-penstock-cache"], float(first_ms) / 1e3, took


async def round_of(session: aiohttp.ClientSession, mesh: Mesh, prompts: int, wanted: str) -> Times:
    """Each prompt once; the times of those that got the cache's word `wanted`.

    Raises:
        RuntimeError: less than nine in ten did.
    """
    answers = [await ask(session, mesh, number) for number in range(prompts)]
    right = [answer for answer in answers if answer[0] == wanted]
    if len(right) < prompts * 0.9:
        raise RuntimeError(f"{len(right)} of {prompts} were a {wanted}")
    return [answer[1] for answer in right], [answer[2] for answer in right]


def start_cache(processes: Processes, name: str, port: int, redis: str) -> int:
    """A cache service; its pid."""
    command = [sys.executable, "-m", "services.cache", "--name", name, "--port", str(port), "--redis", redis]
    return processes.start(name, command)


async def measure(prompts: int) -> dict[str, dict[str, float]]:
    """Milliseconds by where the answer came from."""
    binary = shutil.which("redis-server")
    if binary is None:
        raise SystemExit("bench.cache: redis-server is missing (apt-get install redis-server)")
    cache_port, redis_port = free_port(), free_port()
    url = f"redis://127.0.0.1:{redis_port}/0"
    with running() as processes:
        command = [
            binary,
            "--bind",
            "127.0.0.1",
            "--port",
            str(redis_port),
            "--save",
            "",
            "--dir",
            str(processes.folder),
        ]
        processes.start("redis-0", command)
        first = start_cache(processes, "cache-0", cache_port, url)
        mesh = Mesh(processes, workers=1, step_ms=1.0, cache=f"127.0.0.1:{cache_port}")
        mesh.wait_ready()
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30)) as session:
            times = {"engine": await round_of(session, mesh, prompts, "miss")}
            os.kill(first, signal.SIGKILL)
            start_cache(processes, "cache-1", cache_port, url)
            for _ in range(200):  # until the gateway is connected again
                if (await ask(session, mesh, prompts - 1))[0] == "hit":
                    break
            times["redis"] = await round_of(session, mesh, prompts, "hit")
            times["process"] = await round_of(session, mesh, prompts, "hit")
    return {
        source: {
            f"{place}_{name}_ms": quantile(values, q) * 1e3
            for place, values in zip(("gateway", "client"), found, strict=True)
            for name, q in (("p50", 0.5), ("p99", 0.99))
        }
        for source, found in times.items()
    }


def main(argv: Sequence[str]) -> int:
    """Measure and print; 1 when a bound is missed."""
    parser = argparse.ArgumentParser(prog="bench.cache", description="Cost of a response cache hit.")
    parser.add_argument("--prompts", type=int, default=300)
    parser.add_argument("--json", metavar="OUT")
    arguments = parser.parse_args(argv)
    found = uvloop.run(measure(arguments.prompts))
    say(f"{'answer from':<12} {'gateway p50':>12} {'p99':>8} {'client p50':>12} {'p99':>8}   (ms)")
    for source, row in found.items():
        first, second, third, fourth = row.values()
        say(f"{source:<12} {first:>12.2f} {second:>8.2f} {third:>12.2f} {fourth:>8.2f}")
    met = all(found[source]["gateway_p50_ms"] < bound for source, bound in BOUNDS_MS.items())
    say(f"bounds at the gateway, p50: {BOUNDS_MS} ms: {'met' if met else 'MISSED'}")
    machine.write("cache", {"prompts": arguments.prompts, "hits": found, "met": met}, arguments.json)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
