"""Processes of a benchmark: started with a deadline, ended by pid."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from services.common.tenants import hash_key, new_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

START_S = 60
SEQUENCES_MAX = 512
"""Cap of one worker."""


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


def worker_flags(step_ms: float) -> dict[str, object]:
    """Flags of a simulated worker that steps every `step_ms`."""
    return {
        "engine": "sim", "model": "models/nano", "served-model-name": "nano",
        "sim-step-ms": step_ms, "max-sequences": SEQUENCES_MAX,
    }  # fmt: skip


class Processes:
    """Children that end with this object."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> int:
        """Run `command`, its output in FOLDER/NAME.log; the pid."""
        with (self.folder / f"{name}.log").open("wb") as log:
            child = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **(env or {})}, start_new_session=True
            )
        self._children[name] = child
        return child.pid

    def check(self) -> None:
        """Raise RuntimeError when one has ended."""
        for name, child in self._children.items():
            if child.poll() is not None:
                tail = (self.folder / f"{name}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{name} ended with {child.returncode}:\n{tail}")

    def stop(self) -> None:
        """SIGTERM to all, SIGKILL after 5 s to what is left, children's groups included."""
        for child in self._children.values():
            child.terminate()
        for child in self._children.values():
            try:
                child.wait(5)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()


class Mesh:
    """A sim mesh for benchmarks: one gateway, one router, some workers; no supervisor in between."""

    def __init__(self, processes: Processes, *, workers: int, step_ms: float, cache: str = "") -> None:
        self.key = new_key()
        self.http_port = free_port()
        self.router = f"127.0.0.1:{free_port()}"
        self._processes = processes
        tenants = processes.folder / "tenants.yaml"
        tenants.write_text(f"tenants:\n  - id: bench\n    key_hashes: ['{hash_key(self.key)}']\n")
        router = {"port": self.router.rpartition(":")[2], "name": "router-0"}
        self.router_pid = self._start("router", router)
        self.worker_pids = [
            self._start("worker", {**worker_flags(step_ms), "routers": self.router, "name": f"worker-{number}"})
            for number in range(workers)
        ]
        """Of the guardians; `machine.family` has the rest."""
        gateway = {
            "http-port": self.http_port,
            "grpc-port": 0,
            "routers": self.router,
            "tenants": tenants,
            "cache": cache,
        }
        self.gateway_pid = self._start("gateway", {**gateway, "name": "gateway-0"})

    def _start(self, service: str, flags: Mapping[str, object]) -> int:
        command = [sys.executable, "-m", f"services.{service}"]
        for name, value in flags.items():
            command += [f"--{name}", str(value)]
        return self._processes.start(str(flags["name"]), command)

    def wait_ready(self) -> None:
        """Until `/health/ready` says so; RuntimeError after START_S or when a process ended."""
        give_up = time.monotonic() + START_S
        while time.monotonic() < give_up:
            self._processes.check()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}/health/ready", timeout=2):
                    return
            except (urllib.error.URLError, ConnectionError):
                time.sleep(0.1)
        raise RuntimeError(f"the mesh was not ready within {START_S} s; logs are in {self._processes.folder}")


@contextlib.contextmanager
def running() -> Iterator[Processes]:
    """Processes in a temporary folder."""
    with tempfile.TemporaryDirectory(prefix="penstock-bench-") as folder:
        processes = Processes(Path(folder))
        try:
            yield processes
        finally:
            processes.stop()
