"""Starts meshes through the `penstock` command, as a user does, and makes sure that nothing of them is left behind.

with start_mesh(tmp_path / "state", "--workers", "2") as mesh:
    client = openai.OpenAI(base_url=f"{mesh.base_url}/v1", api_key=mesh.api_key)
    mesh.kill("worker-0")
    mesh.wait_until_restarted("worker-0", before)
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import psutil

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

PENSTOCK = Path(sys.executable).with_name("penstock")
NANO = Path(__file__).resolve().parents[2] / "models" / "nano"
MARKER = "MESH_TEST_ID"
UP_S_MAX = 110.0
DOWN_S_MAX = 60.0
WAIT_S_MAX = 60.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Process:
    """A line of `penstock status --json`."""

    role: Literal["gateway", "router", "worker", "cache", "redis"]
    name: str
    pid: int | None
    address: str | None
    health: str


def penstock(*arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = UP_S_MAX) -> str:
    """Run the command; its stdout.

    Raises:
        AssertionError: it failed; shows its output.
    """
    result = run_penstock(*arguments, env=env, timeout_s=timeout_s)
    assert result.returncode == 0, f"penstock {' '.join(arguments)}: {result.stdout}{result.stderr}"
    return result.stdout


def run_penstock(
    *arguments: str, env: Mapping[str, str] | None = None, timeout_s: float = UP_S_MAX
) -> subprocess.CompletedProcess[str]:
    """Run the command, whatever comes of it."""
    return subprocess.run(
        [str(PENSTOCK), *arguments], env={**os.environ, **(env or {})}, stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=timeout_s, check=False,
    )  # fmt: skip


@dataclass
class Mesh:
    """A running mesh."""

    state_dir: Path
    marker: str
    base_url: str
    grpc_target: str
    api_key: str
    model: str
    supervisor_pid: int
    is_down: bool = field(default=False, init=False)

    def processes(self) -> list[Process]:
        """What `status --json` says now."""
        answer = json.loads(penstock("status", "--json", "--state-dir", str(self.state_dir)))
        return [Process(**entry) for entry in answer["processes"]]

    def process(self, name: str) -> Process:
        """One of them."""
        return next(process for process in self.processes() if process.name == name)

    def addresses(self, role: str) -> list[str]:
        """host:port of every process of a role."""
        return [process.address for process in self.processes() if process.role == role and process.address]

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> int:
        """Send a signal; the pid that got it."""
        pid = self.process(name).pid
        assert pid is not None, f"{name} is down"
        os.kill(pid, number)
        return pid

    def wait_until(self, condition: Callable[[list[Process]], bool], what: str, timeout_s: float = WAIT_S_MAX) -> None:
        """Wait until the processes are as `condition` says.

        Raises:
            AssertionError: they aren't in time; shows them.
        """
        deadline = time.monotonic() + timeout_s
        while not condition(now := self.processes()):
            assert time.monotonic() < deadline, f"not {what} after {timeout_s} s: {now}"
            time.sleep(POLL_S)

    def wait_until_restarted(self, name: str, pid: int, timeout_s: float = WAIT_S_MAX) -> None:
        """Wait until `name` serves under another pid than `pid`."""
        self.wait_until(
            lambda now: any(p.name == name and p.pid not in (None, pid) and p.health == "serving" for p in now),
            f"{name} restarted", timeout_s,
        )  # fmt: skip

    def logs(self, name: str) -> str:
        """The log of a process."""
        return (self.state_dir / "logs" / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def family(self) -> list[psutil.Process]:
        """The supervisor and all its descendants, in whatever group or session."""
        try:
            supervisor = psutil.Process(self.supervisor_pid)
            return [supervisor, *supervisor.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def down(self) -> None:
        """`penstock down`, then see that nothing is left.

        Raises:
            AssertionError: a process survived; it has been killed.
        """
        known = self.family()
        penstock("down", "--state-dir", str(self.state_dir), timeout_s=DOWN_S_MAX)
        self.is_down = True
        assert_gone(known, self.marker)


def assert_gone(known: list[psutil.Process], marker: str, timeout_s: float = 10.0) -> None:
    """Nothing of a mesh lives: neither a process of `known` nor any with its marker in the environment.

    Raises:
        AssertionError: something does after `timeout_s`; it has been killed.
    """
    suspects = {process.pid: process for process in [*known, *marked(marker)]}
    deadline = time.monotonic() + timeout_s
    while (alive := [process for process in suspects.values() if _lives(process)]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    for process in alive:
        process.kill()
    assert not alive, f"left behind: {alive}"


def marked(marker: str) -> list[psutil.Process]:
    """Processes that were started with this marker."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARKER) == marker:
                found.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@contextmanager
def start_mesh(
    state_dir: Path,
    *flags: str,
    engine: Literal["sim", "vllm"] = "sim",
    model: Path | str = NANO,
    env: Mapping[str, str] | None = None,
    timeout_s: float = UP_S_MAX,
) -> Iterator[Mesh]:
    """A mesh of its own, on free ports; down (and checked for leftovers) at the end of the block.

    Args:
        state_dir: where it keeps its state.
        flags: more flags of `penstock up`; what follows `--` goes to vLLM.
        env: added to the environment of every process, e.g. PENSTOCK_SIM_STEP_MS.
    """
    marker = uuid.uuid4().hex
    environment = {**(env or {}), MARKER: marker}
    mesh: Mesh | None = None
    try:
        penstock(
            "up", "--engine", engine, "--model", str(model), "--detach", "--state-dir", str(state_dir),
            "--http-port", "0", "--grpc-port", "0", "--start-timeout-s", str(timeout_s - 5), *flags,
            env=environment, timeout_s=timeout_s,
        )  # fmt: skip
        mesh = _attach(state_dir, marker)
        yield mesh
    finally:
        if mesh is None or not mesh.is_down:
            known = mesh.family() if mesh is not None else []
            run_penstock("down", "--state-dir", str(state_dir), timeout_s=DOWN_S_MAX)
            assert_gone(known, marker)


def _attach(state_dir: Path, marker: str) -> Mesh:
    answer = json.loads(penstock("status", "--json", "--state-dir", str(state_dir)))
    state = json.loads((state_dir / "mesh.json").read_text(encoding="utf-8"))
    return Mesh(
        state_dir=state_dir,
        marker=marker,
        base_url=answer["base_url"],
        grpc_target=answer["grpc_target"],
        api_key=answer["api_key"],
        model=state["model"],
        supervisor_pid=state["pid"],
    )
