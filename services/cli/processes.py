"""Starting and ending one process with all that it started."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from services.cli.state import MeshState

_OURS = ("CUDA_VISIBLE_DEVICES", "PENSTOCK_REDIS")
"""Made from what the user set and from flags."""
CHILD = str(Path(__file__).with_name("child.py"))


async def spawn(argv: Sequence[str], env: Mapping[str, str], log: Path) -> asyncio.subprocess.Process:
    """Start `argv` in a session and group of its own, writing to `log`; it ends when this process does.

    What the user set in the environment wins over `env`, but for what `env` has made of it (`_OURS`).
    """
    with log.open("ab") as output:
        return await asyncio.create_subprocess_exec(
            sys.executable, "-I", "-S", CHILD, str(os.getpid()), *argv,
            stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
            env={**env, **os.environ, **{key: env[key] for key in _OURS if key in env}},
        )  # fmt: skip


def created(pid: int) -> float | None:
    """When a process started, in seconds since 1970; None when it is gone."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.NoSuchProcess:
        return None


def find(pid: int | None, created_at: float | None) -> psutil.Process | None:
    """The process of that pid and start time, if it lives."""
    if pid is None or created_at is None:
        return None
    try:
        process = psutil.Process(pid)
        alive = process.create_time() == created_at and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    return process if alive else None


def family(pid: int) -> list[psutil.Process]:
    """The descendants of a process, whatever group they are in."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def how_it_ended(code: int) -> str:
    """A return code in words. A worker's guardian passes the signal that ended its worker on as 128 + its number."""
    number = -code if code < 0 else code - 128
    try:
        return f"was killed by {signal.Signals(number).name}"
    except ValueError:
        return f"ended with status {code}"


def working_pid(pid: int | None) -> int | None:
    """The process that does the work of what the supervisor started as `pid`.

    A worker's engine runs under a tiny guardian, as the leader of a group of its own; signals that are to hit the
    worker (SIGSTOP, say) must go there. Any other service is its own.
    """
    for child in family(pid) if pid is not None else ():
        with suppress(ProcessLookupError, psutil.NoSuchProcess):
            if child.ppid() == pid and os.getpgid(child.pid) == child.pid:
                return child.pid
    return pid


def kill_group(pid: int, others: Iterable[psutil.Process] = ()) -> None:
    """SIGKILL to the group that `pid` leads (or led), and to `others` that may have left it."""
    with suppress(ProcessLookupError, PermissionError):  # nobody left in it (the latter: macOS, of zombies)
        os.killpg(pid, signal.SIGKILL)
    for process in others:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def end_leftovers(mesh: MeshState) -> int:
    """SIGKILL what a dead supervisor left behind; how many processes that were."""
    ended = 0
    for state in mesh.processes:
        process = find(state.pid, state.created)
        if process is not None:
            kill_group(process.pid, family(process.pid))
            ended += 1
    return ended
