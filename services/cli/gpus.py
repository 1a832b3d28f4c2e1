"""Which worker computes on which GPUs, or on which cores. Pure, but for `visible_gpus`.

Workers of one host get disjoint devices; a wish that can't be met is refused with the count.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

from services.cli.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NVIDIA_SMI_S_MAX = 30.0


def visible_gpus(environment: Mapping[str, str]) -> list[str]:
    """Ids of the GPUs this process may use, as CUDA_VISIBLE_DEVICES takes them; empty = there are none."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    try:
        result = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=NVIDIA_SMI_S_MAX, check=False)
    except subprocess.TimeoutExpired:
        return []
    return choose_visible(result.stdout if result.returncode == 0 else "", environment.get("CUDA_VISIBLE_DEVICES"))


def choose_visible(listing: str, cuda_visible_devices: str | None) -> list[str]:
    """The GPUs of an `nvidia-smi -L` listing that CUDA_VISIBLE_DEVICES leaves (None = it is not set)."""
    count = sum(line.startswith("GPU ") for line in listing.splitlines())
    if count == 0:
        return []
    if cuda_visible_devices is None:
        return [str(index) for index in range(count)]
    chosen: list[str] = []
    for entry in (part.strip() for part in cuda_visible_devices.split(",")):
        if not entry or (entry.lstrip("-").isdigit() and not 0 <= int(entry) < count):
            break  # CUDA ignores the first invalid id and all that follow it
        chosen.append(entry)
    return chosen


def assign_gpus(gpus: Sequence[str], *, workers: int, tensor_parallel: int, pipeline_parallel: int) -> list[str]:
    """CUDA_VISIBLE_DEVICES of each worker, disjoint.

    Raises:
        CliError: there are fewer GPUs than workers x TP x PP.
    """
    each = tensor_parallel * pipeline_parallel
    if workers * each > len(gpus):
        raise CliError(
            f"{_count(workers, 'worker')} x TP {tensor_parallel} x PP {pipeline_parallel} need "
            f"{_count(workers * each, 'GPU')}, this machine has {len(gpus)} (of CUDA_VISIBLE_DEVICES, where set). "
            "Lower --workers, --tensor-parallel-size or --pipeline-parallel-size."
        )
    return [",".join(gpus[first : first + each]) for first in range(0, workers * each, each)]


def assign_cores(cores: Sequence[int], *, workers: int, tensor_parallel: int) -> tuple[list[str], str]:
    """VLLM_CPU_OMP_THREADS_BIND of each worker (its ranks separated by `|`), and a note ("" = all is well).

    With more cores than ranks one core is left to the gateway and the router; with fewer, ranks share cores.
    """
    ranks = workers * tensor_parallel
    if len(cores) < ranks:
        per_rank = [str(cores[rank % len(cores)]) for rank in range(ranks)]
        note = f"{_count(ranks, 'model process', 'es')} share {_count(len(cores), 'core')}: this works, but slowly"
    else:
        usable = list(cores[:-1] if len(cores) > ranks else cores)
        share = len(usable) // ranks
        per_rank = [_ranges(usable[rank * share : (rank + 1) * share]) for rank in range(ranks)]
        note = ""
    size = tensor_parallel
    return ["|".join(per_rank[first : first + size]) for first in range(0, ranks, size)], note


def _ranges(cores: Sequence[int]) -> str:
    """`0-2,5` for [0, 1, 2, 5]."""
    runs: list[list[int]] = []
    for core in sorted(cores):
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _count(number: int, noun: str, plural: str = "s") -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}{plural}"
