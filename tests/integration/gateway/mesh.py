"""Processes of a real mesh: sim workers, routers, cache, gateway; started by name, ended by pid."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.cache.app import CacheApp
from services.cache.settings import CacheSettings
from services.router.app import Router
from services.router.settings import RouterSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

NANO = Path(__file__).parents[3] / "models" / "nano"
START_S = 60.0


class Process:
    """`python -m services.NAME`; `address` is there once `ready` has returned."""

    def __init__(self, folder: Path, name: str, module: str, *flags: str, **env: str) -> None:
        self._announce = folder / f"{name}.json"
        self._log = folder / f"{name}.log"
        command = [sys.executable, "-m", f"services.{module}", "--announce", str(self._announce), *flags]
        with self._log.open("wb") as log:
            self._child = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **env}, start_new_session=True
            )

    async def ready(self) -> dict[str, Any]:
        """What it announced, once it listens.

        Raises:
            AssertionError: it ended, or is not there in time; shows its log.
        """
        async with asyncio.timeout(START_S):
            while not self._announce.exists():
                assert self._child.poll() is None, self.log
                await asyncio.sleep(0.02)
        found: dict[str, Any] = json.loads(self._announce.read_text())
        return found

    @property
    def pid(self) -> int:
        """Of the process that serves; a worker's guardian is another one."""
        pid: int = json.loads(self._announce.read_text())["pid"]
        return pid

    @property
    def log(self) -> str:
        """All it said."""
        return self._log.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        self._child.send_signal(number)

    async def ended(self) -> int:
        """Its exit status, waiting for it."""
        async with asyncio.timeout(START_S):
            return await asyncio.to_thread(self._child.wait)

    def kill(self) -> None:
        """End it and what it started."""
        self._child.kill()
        self._child.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)


@contextlib.contextmanager
def process(folder: Path, name: str, module: str, *flags: str, **env: str) -> Iterator[Process]:
    """A process that ends with the block."""
    started = Process(folder, name, module, *flags, **env)
    try:
        yield started
    finally:
        started.kill()


def sim_worker(folder: Path, name: str, routers: str, *flags: str, step_ms: float = 5.0) -> Any:
    """A sim worker that serves `m` with nano's tokenizer."""
    return process(
        folder, name, "worker", "--engine", "sim", "--model", str(NANO), "--served-model-name", "m", "--port", "0",
        "--name", name, "--routers", routers, *flags, PENSTOCK_SIM_STEP_MS=str(step_ms),
    )  # fmt: skip


@asynccontextmanager
async def running_router(**settings: Any) -> AsyncIterator[tuple[Router, str]]:
    """A router in this process, and its address."""
    router = Router(RouterSettings(port=0, **settings))
    async with asyncio.TaskGroup() as tasks:
        addresses = await router.start(tasks)
        try:
            yield router, addresses["grpc"]
        finally:
            await router.stop()


@asynccontextmanager
async def running_cache() -> AsyncIterator[tuple[CacheApp, str]]:
    """A cache service in this process, and its address."""
    cache = CacheApp(CacheSettings(port=0))
    async with asyncio.TaskGroup() as tasks:
        addresses = await cache.start(tasks)
        try:
            yield cache, addresses["grpc"]
        finally:
            await cache.stop()
