"""The life of a process: start, run until told to stop, drain with a deadline, cut what is left and say how much."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import uvloop

if TYPE_CHECKING:
    from collections.abc import Mapping

log = logging.getLogger(__name__)


class Service(Protocol):
    """What a service gives to `run`. Its long tasks live in `tasks`, so none is an orphan."""

    async def start(self, tasks: asyncio.TaskGroup) -> Mapping[str, str]:
        """Listen, and return what listens where, e.g. `{"grpc": "127.0.0.1:8001"}`."""

    async def drain(self) -> None:
        """Take no new work and return when the running work has ended. Cancelled at the deadline."""

    async def stop(self) -> int:
        """Cut what still runs, close everything; how many pieces of work were cut."""


class _Stopped(Exception):
    """Ends the task group of a stopped service."""


def announce(path: str, addresses: Mapping[str, str]) -> None:
    """Write pid and addresses for whoever started this process. The file appears whole or not at all."""
    target = Path(path)
    draft = target.with_suffix(f".{os.getpid()}.tmp")
    draft.write_text(json.dumps({"pid": os.getpid(), **addresses}))
    draft.replace(target)


async def serve(service: Service, *, drain_s: float, announce_to: str = "") -> None:
    """Run `service` until SIGTERM or SIGINT; a second signal skips the drain.

    Raises:
        ExceptionGroup: a task of the service failed; the process should end with a non-zero status.
    """
    loop = asyncio.get_running_loop()
    asked, insisted = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (insisted if asked.is_set() else asked).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    try:
        async with asyncio.TaskGroup() as tasks:
            addresses = await service.start(tasks)
            if announce_to:
                announce(announce_to, addresses)
            log.info("serving", extra=dict(addresses))
            await asked.wait()
            await _shut_down(service, insisted, drain_s)
            raise _Stopped
    except* _Stopped:
        pass


async def _shut_down(service: Service, insisted: asyncio.Event, drain_s: float) -> None:
    began = time.monotonic()
    log.info("draining", extra={"drain_s": drain_s})
    drain = asyncio.ensure_future(service.drain())
    insist = asyncio.ensure_future(insisted.wait())
    await asyncio.wait({drain, insist}, timeout=drain_s, return_when=asyncio.FIRST_COMPLETED)
    for task in (drain, insist):
        task.cancel()
    results = await asyncio.gather(drain, insist, return_exceptions=True)
    if isinstance(results[0], Exception):
        log.error("drain failed", exc_info=results[0])
    cut = await service.stop()
    log.info("stopped", extra={"cut": cut, "seconds": round(time.monotonic() - began, 3)})


def run(service: Service, *, drain_s: float, announce_to: str = "") -> None:
    """`serve` on a fresh uvloop; returns when the service has stopped."""
    uvloop.run(serve(service, drain_s=drain_s, announce_to=announce_to))
