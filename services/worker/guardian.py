"""No process outlives a killed worker (DESIGN 12).

    guardian ---- worker          leader of its own process group, with all that the engine starts
            \\--- sentinel        in the worker's group, blocked on a pipe that only the guardian holds open

- The worker ends, however: the guardian kills the group and ends with the worker's status (128 + signal).
- The guardian ends, even by SIGKILL: the pipe closes and the sentinel kills the group.
- The sentinel ends: the guardian starts another.
- SIGTERM, SIGINT and SIGHUP to the guardian go on to the worker.

Must run before anything heavy is imported and before any thread is started: it forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from typing import NoReturn

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WATCHED = {*_FORWARDED, signal.SIGCHLD}
_PR_SET_CHILD_SUBREAPER = 36
REAP_S = 10.0
"""Seconds that killed processes get to vanish before the guardian ends without them."""


def guard() -> None:
    """Become the guardian of a new worker process; only the worker returns from this call.

    Raises:
        SystemExit: in the guardian, with the worker's status.
    """
    _adopt_orphans()
    signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    alive_read, alive_write = os.pipe()  # alive_write: held by the guardian alone
    go_read, go_write = os.pipe()
    worker = os.fork()
    if worker == 0:
        _become_worker(go_read, [go_write, alive_read, alive_write])
        return
    with contextlib.suppress(PermissionError):  # it has already done so itself and gone on
        os.setpgid(worker, worker)
    sentinel = _start_sentinel(worker, alive_read, [alive_write, go_read, go_write])
    os.write(go_write, b"!")
    os.close(go_read)
    os.close(go_write)
    _watch(worker, sentinel, alive_read, alive_write)


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


def _start_sentinel(group: int, alive: int, unused: list[int]) -> int:
    pid = os.fork()
    if pid:
        return pid
    with contextlib.suppress(OSError):
        os.setpgid(0, group)
    for descriptor in unused:
        os.close(descriptor)
    # Every signal of _WATCHED stays blocked: a SIGTERM to the group drains the worker and leaves the sentinel.
    os.read(alive, 1)
    _kill_group(group)
    os._exit(0)


def _watch(worker: int, sentinel: int, alive_read: int, alive_write: int) -> NoReturn:
    while True:
        number = signal.sigwait(_WATCHED)
        if number != signal.SIGCHLD:
            os.kill(worker, number)
            continue
        for pid, status in _ended():
            if pid == worker:
                _finish(worker, status)
            if pid == sentinel:
                sentinel = _start_sentinel(worker, alive_read, [alive_write])


def _finish(group: int, status: int) -> NoReturn:
    """End the whole group, wait until it is gone, and exit as the worker did."""
    _kill_group(group)
    deadline = time.monotonic() + REAP_S
    while (left := deadline - time.monotonic()) > 0 and _children_left():
        signal.sigtimedwait({signal.SIGCHLD}, left)
    code = os.waitstatus_to_exitcode(status)
    sys.exit(128 - code if code < 0 else code)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


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
