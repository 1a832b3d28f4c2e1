"""`penstock down`: ending what another process runs."""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING

from rich.console import Console

from services.cli.plan import STOP_ORDER
from services.cli.processes import end_leftovers
from services.cli.state import StateDir
from services.cli.supervisor import KILL_AFTER_S

if TYPE_CHECKING:
    from pathlib import Path

STOP_S_MAX = KILL_AFTER_S * len(STOP_ORDER) + 10.0
KILLED_S_MAX = 10.0
EXIT_S_MAX = 10.0


def down(state_dir: Path) -> int:
    """Stop the mesh of `state_dir` and wait until it is gone; the exit status."""
    state, console = StateDir(state_dir), Console(highlight=False, soft_wrap=True)
    pid = state.supervisor_pid()
    if pid is None:
        _clean_up(state, console)
        console.print(f"Nothing is running on {state.root}.", markup=False)
        return 0
    console.print(f"Stopping the mesh of {state.root} (supervisor pid {pid}) ...", markup=False)
    os.kill(pid, signal.SIGTERM)
    if not state.wait_until_stopped(STOP_S_MAX):
        console.print(f"It did not stop in {STOP_S_MAX:.0f} s: killing it.")
        os.kill(pid, signal.SIGKILL)
        state.wait_until_stopped(KILLED_S_MAX)
        _clean_up(state, console)
    _wait_for_exit(pid)
    console.print("Stopped.")
    return 0


def _wait_for_exit(pid: int) -> None:
    """The supervisor let go of its lock: it is about to end. Wait for that too, where the system can tell."""
    if not hasattr(os, "pidfd_open"):
        return
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        select.select([descriptor], [], [], EXIT_S_MAX)
    finally:
        os.close(descriptor)


def _clean_up(state: StateDir, console: Console) -> None:
    """After a supervisor that could not do it itself."""
    mesh = state.read_mesh()
    if mesh is None:
        return
    ended = end_leftovers(mesh)
    if ended:
        console.print(f"Killed {ended} processes that a dead supervisor left behind.")
    state.remove_mesh()
