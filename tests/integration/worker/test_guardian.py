"""No process of a worker outlives the death of another, whichever is killed, however."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from typing import TYPE_CHECKING

import pytest

from services.common.frames import FinishReason
from tests.integration.worker.harness import (
    NANO,
    ROOT,
    WAIT_S,
    WorkerProcess,
    attached,
    fake_router,
    group_members,
    submit,
    worker_process,
)

if TYPE_CHECKING:
    from pathlib import Path

SIM = ("--engine", "sim", "--model", NANO, "--served-model-name", "nano", "--sim-step-ms", "1")


async def gone(pids: list[int]) -> None:
    """Wait until none of these processes lives."""
    async with asyncio.timeout(WAIT_S), asyncio.TaskGroup() as tasks:
        for pid in pids:
            tasks.create_task(asyncio.to_thread(wait_for_end, pid))


def wait_for_end(pid: int) -> None:
    """Block until `pid` has ended; not our child, so through a pidfd."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        assert poll.poll(WAIT_S * 1e3), f"process {pid} still lives"
    finally:
        os.close(descriptor)


def everyone(worker: WorkerProcess) -> list[int]:
    """Worker and sentinel, which must be there."""
    members = group_members(worker.pid)
    assert worker.pid in members
    assert len(members) == 2
    return members


async def test_the_announced_pid_is_the_engines_and_leads_its_group(tmp_path: Path) -> None:
    async with worker_process(tmp_path, *SIM) as worker:
        assert worker.pid != worker.guardian.pid
        assert os.getpgid(worker.pid) == worker.pid
        assert os.getpgid(worker.guardian.pid) != worker.pid


async def test_a_killed_worker_takes_its_sentinel_and_its_guardian_tells(tmp_path: Path) -> None:
    async with worker_process(tmp_path, *SIM) as worker:
        members = everyone(worker)
        os.kill(worker.pid, signal.SIGKILL)
        async with asyncio.timeout(WAIT_S):
            assert await worker.guardian.wait() == 128 + signal.SIGKILL
        assert group_members(worker.pid) == []
        await gone(members)


async def test_a_killed_guardian_takes_the_worker_along(tmp_path: Path) -> None:
    async with worker_process(tmp_path, *SIM) as worker:
        members = everyone(worker)
        worker.guardian.kill()
        await gone(members)


async def test_a_killed_sentinel_is_replaced(tmp_path: Path) -> None:
    async with worker_process(tmp_path, *SIM) as worker:
        (sentinel,) = set(everyone(worker)) - {worker.pid}
        os.kill(sentinel, signal.SIGKILL)
        await gone([sentinel])
        async with asyncio.timeout(WAIT_S):
            while len(group_members(worker.pid)) < 2:  # noqa: ASYNC110  another process tells nobody
                await asyncio.sleep(0)
        members = everyone(worker)
        worker.guardian.kill()
        await gone(members)


async def test_grandchildren_go_too(tmp_path: Path) -> None:
    """A child of the worker that ignores signals, as an engine core may, ends with it."""
    script = (
        "import os, signal, subprocess, sys\n"
        "from services.worker import guardian\n"
        "guardian.guard()\n"
        "code = 'import signal; signal.signal(15, 1); print(1, flush=True); signal.pause()'\n"
        "child = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE)\n"
        "child.stdout.read(1)\n"
        "print(os.getpid(), child.pid, flush=True)\n"
        "signal.pause()\n"
    )
    guardian = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert guardian.stdout is not None
    async with asyncio.timeout(WAIT_S):
        worker, child = (int(pid) for pid in (await guardian.stdout.readline()).split())
        assert {worker, child} <= set(group_members(worker))
        os.kill(worker, signal.SIGKILL)
        assert await guardian.wait() == 128 + signal.SIGKILL
    assert group_members(worker) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_the_guardian_drains_the_worker(tmp_path: Path, number: signal.Signals) -> None:
    async with (
        fake_router() as (router, at),
        worker_process(tmp_path, *SIM, "--routers", at) as worker,
        attached(worker.address, (await router.registration()).incarnation) as gateway,
    ):
        members = everyone(worker)
        await gateway.send(submit(1, sampling={"max_tokens": 300}))
        await gateway.next()
        worker.guardian.send_signal(number)
        await gateway.until_ended(1)
        assert (gateway.ended[1].reason, gateway.ended[1].completion) == (FinishReason.LENGTH, 300)
        async with asyncio.timeout(WAIT_S):
            assert await worker.guardian.wait() == 0
        await gone(members)


async def test_a_bad_setting_is_told_with_its_status() -> None:
    guardian = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.worker", "--port", "-1", stderr=asyncio.subprocess.PIPE, cwd=ROOT
    )
    _, stderr = await asyncio.wait_for(guardian.communicate(), WAIT_S)
    assert guardian.returncode == 2
    assert b"PENSTOCK_PORT (--port)" in stderr
