"""No process of a worker outlives the death of another, whichever is killed, however."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
from pathlib import Path

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


FAMILY = """
import os, signal, subprocess, sys
from services.worker import guardian
scratch = guardian.guard()
deaf = '''
import mmap, signal, sys
from multiprocessing import get_context
from multiprocessing.shared_memory import SharedMemory
signal.signal(signal.SIGTERM, signal.SIG_IGN)
memory = SharedMemory(create=True, size=4096)
lock = get_context("spawn").Lock()
weights = open(sys.argv[1], "r+b")
kept = mmap.mmap(weights.fileno(), 0)
print(memory.name, "sem." + lock._semlock.name[1:], flush=True)
signal.pause()
'''
child = subprocess.Popen([sys.executable, "-c", deaf, sys.argv[1]], stdout=subprocess.PIPE)
memory = child.stdout.readline().decode().strip()
print(os.getpid(), child.pid, scratch, memory, flush=True)
signal.pause()
"""


@pytest.mark.parametrize("victim", ["worker", "guardian"])
def test_children_memory_and_scratch_go_too(victim: str) -> None:
    """A child that ignores SIGTERM, as an engine core may, and what it shared; but no file that others put there."""
    weights = Path("/dev/shm/penstock-test-weights")
    weights.write_bytes(b"weights")
    guardian = subprocess.Popen(
        [sys.executable, "-c", FAMILY, str(weights)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    try:
        assert guardian.stdout is not None
        worker, child, scratch, memory, lock = guardian.stdout.readline().decode().split()
        members = group_members(int(worker))
        assert {int(worker), int(child)} <= set(members)
        assert Path(scratch).is_dir()
        assert Path("/dev/shm", memory).exists()
        assert Path("/dev/shm", lock).exists()
        os.kill(int(worker) if victim == "worker" else guardian.pid, signal.SIGKILL)
        guardian.wait(WAIT_S)
        for pid in members:
            wait_for_end(pid)
        assert not Path(scratch).exists()
        assert not Path("/dev/shm", memory).exists()
        assert not Path("/dev/shm", lock).exists()
        assert weights.read_bytes() == b"weights"
    finally:
        guardian.kill()
        guardian.communicate()
        weights.unlink()


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
