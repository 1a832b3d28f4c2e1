"""No process outlives a killed worker (DESIGN 12).

    guardian ---- worker          leader of its own process group, with all that the engine starts
            \\--- sentinel        in the worker's group, blocked on a pipe that only the guardian holds open

- The worker ends, however: the guardian kills the group and ends with the worker's status (128 + signal).
- The guardian ends, even by SIGKILL: the pipe closes and the sentinel kills the group.
- The sentinel ends: the guardian starts another.
- SIGTERM, SIGINT and SIGHUP to the guardian go on to the worker.
- Whoever kills the group first removes what killed processes leave behind: the shared memory that they have mapped
  (vLLM's message queues, 8 MiB and more for each death) and the scratch folder of their sockets.

Must run before anything heavy is imported and before any thread is started: it forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WATCHED = {*_FORWARDED, signal.SIGCHLD}
_PR_SET_CHILD_SUBREAPER = 36
_SHM = Path("/dev/shm")
_MAPPED = re.compile(r" (\d+) +/dev/shm/")
"""Inode of a mapped file there, in a line of /proc/PID/maps."""
_OURS = ("psm_", "sem.mp-", "vllm_dist_", "torch_", "nccl-")
"""How multiprocessing, vLLM, torch and NCCL name theirs."""
REAP_S = 10.0
"""Seconds that killed processes get to vanish before the guardian ends without them."""


def guard() -> str:
    """Become the guardian of a new worker process; only the worker returns from this call.

    Returns:
        A scratch folder, removed when the group ends.

    Raises:
        SystemExit: in the guardian, with the worker's status.
    """
    _adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    scratch = tempfile.mkdtemp(prefix="penstock-worker-")
    alive_read, alive_write = os.pipe()  # alive_write: held by the guardian alone
    go_read, go_write = os.pipe()
    worker = os.fork()
    if worker == 0:
        _become_worker(go_read, [go_write, alive_read, alive_write])
        return scratch
    group = Group(worker, scratch)
    with contextlib.suppress(PermissionError):  # it has already done so itself and gone on
        os.setpgid(worker, worker)
    sentinel = _start_sentinel(group, alive_read, [alive_write, go_read, go_write])
    os.write(go_write, b"!")
    os.close(go_read)
    os.close(go_write)
    _watch(group, sentinel, alive_read, alive_write)
    return None


def _adopt_orphans() -> None:
    """On Linux orphaned descendants become the guardian's children, so it sees them end. Elsewhere init gets them."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _become_worker(go: int, unused: list[int]) -> None:
    os.setpgid(0, 0)
    for descriptor in unused:
        os.close(descriptor)
    started = os.read(go, 1)  # nothing heavy may start before the sentinel watches
    os.close(go)
    if not started:
        os._exit(1)  # the guardian died in between
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)


def _start_sentinel(group: Group, alive: int, unused: list[int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    with contextlib.suppress(OSError):
        os.setpgid(0, group.worker)
    for descriptor in unused:
        os.close(descriptor)
    # Every signal of _WATCHED stays blocked: a SIGTERM to the group drains the worker and leaves the sentinel.
    os.read(alive, 1)
    group.end()
    os._exit(0)


def _watch(group: Group, sentinel: int, alive_read: int, alive_write: int) -> NoReturn:
    while True:
        number = signal.sigwait(_WATCHED)
        if number != signal.SIGCHLD:
            os.kill(group.worker, number)
            continue
        for pid, status in _ended():
            if pid == group.worker:
                _finish(group, status)
            if pid == sentinel:
                sentinel = _start_sentinel(group, alive_read, [alive_write])


def _finish(group: Group, status: int) -> NoReturn:
    """End the whole group, wait until it is gone, and exit as the worker did."""
    group.end()
    deadline = time.monotonic() + REAP_S
    while (left := deadline - time.monotonic()) > 0 and _children_left():
        signal.sigtimedwait({signal.SIGCHLD}, left)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(128 - code if code < 0 else code)


@dataclass(frozen=True, slots=True)
class Group:
    """The worker's process group, and what it leaves behind."""

    worker: int
    scratch: str

    def end(self) -> None:
        """Remove its traces, then kill it, the caller included when it is a member."""
        for path in shared_memory(self.worker):
            with contextlib.suppress(OSError):
                path.unlink()  # who has it mapped keeps it until the end
        shutil.rmtree(self.scratch, ignore_errors=True)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.worker, signal.SIGKILL)


def shared_memory(group: int) -> set[Path]:
    """Shared memory that the group's processes have mapped and made themselves, as /proc shows it (Linux).

    Told by its name, because a model that somebody keeps in /dev/shm is mapped too and not ours to remove; and by its
    inode, because a semaphore is mapped under another name than it has.
    """
    mapped: set[int] = set()
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, ValueError):
            if os.getpgid(int(process.name)) == group:
                mapped.update(int(inode) for inode in _MAPPED.findall((process / "maps").read_text()))
    found = set()
    for path in _SHM.glob("*"):
        with contextlib.suppress(OSError):
            if path.name.startswith(_OURS) and path.stat().st_ino in mapped:
                found.add(path)
    return found


def _ended() -> list[tuple[int, int]]:
    """(pid, status) of children that ended; adopted ones too."""
    found = []
    with contextlib.suppress(ChildProcessError):
        while (entry := os.waitpid(-1, os.WNOHANG))[0]:
            found.append(entry)
    return found


def _children_left() -> bool:
    _ended()
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True
