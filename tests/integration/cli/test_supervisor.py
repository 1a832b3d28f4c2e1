"""The supervisor over real processes that misbehave."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from services.cli import supervisor as module
from services.cli.options import UpOptions
from services.cli.plan import Plan, ProcessSpec
from services.cli.ports import choose_ports
from services.cli.report import Changed, Failed, Planned, Ready, Stopping
from services.cli.state import MeshState, StateDir
from services.cli.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

FAKE = str(Path(__file__).with_name("fake.py"))
Event = Planned | Changed | Ready | Stopping | Failed


class Watcher:
    """Records the events of a supervisor and waits for one."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._more = asyncio.Event()

    def __call__(self, event: Event) -> None:
        self.events.append(event)
        self._more.set()

    async def until(self, condition: Callable[[Event], bool]) -> None:
        async with asyncio.timeout(60):
            while not any(condition(event) for event in self.events):
                self._more.clear()
                await self._more.wait()

    async def ready(self) -> None:
        await self.until(lambda event: isinstance(event, Ready))

    @property
    def mesh(self) -> MeshState:
        return next(event.mesh for event in reversed(self.events) if isinstance(event, Changed))

    def pids(self) -> set[int]:
        """Every pid there ever was."""
        meshes = [event.mesh for event in self.events if isinstance(event, Changed)]
        return {process.pid for mesh in meshes for process in mesh.processes if process.pid is not None}

    @property
    def notes(self) -> list[str]:
        return [event.note for event in self.events if isinstance(event, Changed) and event.note]


class Bench:
    """A supervisor of fakes that runs in this process."""

    def __init__(self, root: Path, *words: tuple[str, ...], start_timeout_s: float = 60) -> None:
        ports = choose_ports(UpOptions(gateways=len(words), http_port=0, grpc_port=0)).gateway_http
        specs = tuple(
            ProcessSpec("gateway", f"gateway-{i}", (sys.executable, FAKE, str(port), *words[i]), f"127.0.0.1:{port}")
            for i, port in enumerate(ports)
        )
        plan = Plan(specs, "nano", "fake", f"http://{specs[0].address}", "none")
        self.watcher = Watcher()
        self.state = StateDir(root)
        self.state.create()
        self.supervisor = Supervisor(plan, self.state, self.watcher, api_key="key", start_timeout_s=start_timeout_s)
        self.run = asyncio.ensure_future(self.supervisor.run())

    async def end(self) -> int:
        async with asyncio.timeout(60):
            return await self.run


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def lives(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


async def test_what_dies_is_started_again_and_said_so(tmp_path: Path) -> None:
    bench = Bench(tmp_path, (), ())
    await bench.watcher.ready()
    first, other = (process.pid for process in bench.watcher.mesh.processes)
    assert first is not None
    os.kill(first, signal.SIGKILL)
    await bench.watcher.until(lambda e: isinstance(e, Changed) and e.note == "gateway-0 is ready again")
    assert bench.watcher.notes[0] == "gateway-0 was killed by SIGKILL, it starts again in 0.5 s"
    process, same = bench.watcher.mesh.processes
    assert (process.restarts, process.health, same.pid) == (1, "serving", other)
    assert process.pid != first
    assert bench.state.read_mesh() == bench.watcher.mesh
    stop()
    assert await bench.end() == 0
    assert bench.state.read_mesh() is None
    assert not any(
        lives(p.pid) for e in bench.watcher.events if isinstance(e, Changed) for p in e.mesh.processes if p.pid
    )


async def test_who_does_not_listen_is_killed_with_all_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KILL_AFTER_S", 0.3)
    bench = Bench(tmp_path, ("deaf", "orphan", str(tmp_path / "orphan")))
    await bench.watcher.ready()
    orphan = int((tmp_path / "orphan").read_text())
    assert lives(orphan)
    stop()
    assert await bench.end() == 0
    assert not lives(orphan)


async def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    bench = Bench(tmp_path, ("deaf",))
    await bench.watcher.ready()
    stop()
    await bench.watcher.until(lambda event: isinstance(event, Stopping))
    stop()
    assert await bench.end() == 0


async def test_who_never_starts_is_given_up_and_the_rest_is_stopped(tmp_path: Path) -> None:
    bench = Bench(tmp_path, (), ("fail",))
    assert await bench.end() == 1
    failed = bench.watcher.events[-1]
    assert isinstance(failed, Failed)
    assert "gateway-1 ended with status 1, 3 times in a row before it was ever ready" in failed.message
    assert failed.log[-1] == "no such thing as luck"
    assert not any(process.pid for process in bench.watcher.mesh.processes)


async def test_a_start_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    bench = Bench(tmp_path, (), start_timeout_s=0.001)
    assert await bench.end() == 1
    failed = bench.watcher.events[-1]
    assert isinstance(failed, Failed)
    assert "gateway-0 was not ready after 0 s (--start-timeout-s)" in failed.message


async def test_a_signal_during_the_start_stops_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, (), (), ())
    await bench.watcher.until(lambda event: isinstance(event, Planned))
    stop()
    assert await bench.end() == 0
    assert not any(isinstance(event, Ready) for event in bench.watcher.events)
    assert not any(process.pid for process in bench.watcher.mesh.processes)
