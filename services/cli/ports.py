"""Choosing the ports of a mesh, once, before anything is started."""

from __future__ import annotations

import random
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.cli.errors import CliError

if TYPE_CHECKING:
    from services.cli.options import UpOptions

HOST = "127.0.0.1"
# Below the range from which Linux takes ports for outgoing connections (32768 up): while a process that died waits for
# its restart, none of those can sit on its port.
INTERNAL_PORTS = range(20_000, 32_000)
TRIES_MAX = 1_000
GATEWAY_STRIDE = 2
"""Gateway i listens i times this above the first one."""


@dataclass(frozen=True, slots=True)
class Ports:
    """A port per listener, in the order of the processes."""

    gateway_http: tuple[int, ...]
    gateway_grpc: tuple[int, ...]
    routers: tuple[int, ...]
    workers: tuple[int, ...]
    cache: int
    redis: int = 0


def is_free(port: int, host: str = HOST) -> bool:
    """Whether a server could listen there now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def choose_ports(options: UpOptions) -> Ports:
    """Fixed ports as asked for, internal ones at random among the free.

    Raises:
        CliError: a fixed port is taken, out of range or asked for twice; names it and the flag that changes it.
    """
    taken: set[int] = set()
    http = _gateway_ports(options.http_port, options.gateways, "--http-port", taken)
    grpc = _gateway_ports(options.grpc_port, options.gateways, "--grpc-port", taken)
    return Ports(
        gateway_http=http,
        gateway_grpc=grpc,
        routers=tuple(_any_port(taken) for _ in range(options.routers)),
        workers=tuple(_any_port(taken) for _ in range(options.workers)),
        cache=_any_port(taken),
        redis=_any_port(taken),
    )


def _gateway_ports(first: int, count: int, flag: str, taken: set[int]) -> tuple[int, ...]:
    if first == 0:
        return tuple(_any_port(taken) for _ in range(count))
    ports = tuple(first + GATEWAY_STRIDE * index for index in range(count))
    for index, port in enumerate(ports):
        if port > 65_535:
            raise CliError(f"gateway {index} would listen on port {port}, over 65535. Choose a lower {flag}.")
        if port in taken:
            raise CliError(f"port {port} is asked for twice. Choose another --http-port or --grpc-port.")
        if not is_free(port):
            raise CliError(
                f"port {port} is taken by another process. Stop it, or choose another {flag} (0 takes any free port)."
            )
        taken.add(port)
    return ports


def _any_port(taken: set[int]) -> int:
    for _ in range(TRIES_MAX):
        port = random.choice(INTERNAL_PORTS)
        if port not in taken and is_free(port):
            taken.add(port)
            return port
    raise CliError(f"no free port found between {INTERNAL_PORTS.start} and {INTERNAL_PORTS.stop}")
