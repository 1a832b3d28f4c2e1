"""Start, drain, cut: the life of a process, with its signals."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from services.common.lifecycle import announce, serve

if TYPE_CHECKING:
    from collections.abc import Mapping


class Work:
    """A service whose drain ends when it is told to."""

    def __init__(self, *, drains: bool = True, fails: str = "") -> None:
        self.serving = asyncio.Event()
        self.draining = asyncio.Event()
        self.finish = asyncio.Event()
        self.log: list[str] = []
        self._drains = drains
        self._fails = fails

    async def start(self, tasks: asyncio.TaskGroup) -> Mapping[str, str]:
        self.log.append("start")
        if self._fails == "start":
            raise OSError("cannot listen")
        tasks.create_task(self._background())
        return {"grpc": "127.0.0.1:1"}

    async def _background(self) -> None:
        self.serving.set()
        if self._fails == "task":
            raise RuntimeError("the engine died")
        try:
            await asyncio.Event().wait()
        finally:
            self.log.append("background ended")

    async def drain(self) -> None:
        self.draining.set()
        if self._fails == "drain":
            raise RuntimeError("drain broke")
        await self.finish.wait()
        self.log.append("drained")

    async def stop(self) -> int:
        self.log.append("stop")
        return 3


def interrupt(number: signal.Signals = signal.SIGTERM) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_drains_then_stops(number: signal.Signals, tmp_path: Path) -> None:
    work = Work()
    file = tmp_path / "work-0.json"
    running = asyncio.ensure_future(serve(work, drain_s=60, announce_to=str(file)))
    await work.serving.wait()
    interrupt(number)
    await work.draining.wait()
    assert "stop" not in work.log
    assert json.loads(file.read_text()) == {"pid": os.getpid(), "grpc": "127.0.0.1:1"}
    work.finish.set()
    await running
    assert work.log == ["start", "drained", "stop", "background ended"]


async def test_what_does_not_end_in_time_is_cut_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    work = Work()
    with caplog.at_level(logging.INFO):
        running = asyncio.ensure_future(serve(work, drain_s=0.05))
        await work.serving.wait()
        interrupt()
        await running
    assert work.log == ["start", "stop", "background ended"]
    stopped = next(record for record in caplog.records if record.message == "stopped")
    assert stopped.__dict__["cut"] == 3


async def test_a_second_signal_skips_the_drain() -> None:
    work = Work()
    running = asyncio.ensure_future(serve(work, drain_s=3600))
    await work.serving.wait()
    interrupt()
    await work.draining.wait()
    interrupt()
    await running
    assert work.log == ["start", "stop", "background ended"]


async def test_a_drain_that_breaks_still_stops(caplog: pytest.LogCaptureFixture) -> None:
    work = Work(fails="drain")
    running = asyncio.ensure_future(serve(work, drain_s=60))
    await work.serving.wait()
    interrupt()
    await running
    assert "stop" in work.log
    assert any(record.message == "drain failed" for record in caplog.records)


@pytest.mark.parametrize(("where", "error"), [("start", OSError), ("task", RuntimeError)])
async def test_a_failure_ends_the_process(where: str, error: type[Exception]) -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await serve(Work(fails=where), drain_s=60)
    assert caught.group_contains(error)


def test_an_announcement_replaces_the_one_before(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    announce(str(file), {"grpc": "x:1"})
    announce(str(file), {"grpc": "x:2"})
    assert json.loads(file.read_text())["grpc"] == "x:2"
    assert [path.name for path in Path(tmp_path).iterdir()] == ["a.json"]
