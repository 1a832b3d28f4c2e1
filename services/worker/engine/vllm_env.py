"""Environment that vLLM reads when it is imported. Pure, and needs no vLLM: values that are already set always win."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def environment(
    current: Mapping[str, str], *, tensor_parallel_size: int, max_sequences: int, cpus: Sequence[int], debug: bool
) -> dict[str, str]:
    """Variables to add to `current`. `cpus` are the processors that this process may use.

    The VLLM_CPU_* ones do nothing on a GPU.
    """
    wanted = {
        "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
        "VLLM_LOGGING_LEVEL": "DEBUG" if debug else "WARNING",
        "VLLM_LOGGING_STREAM": "ext://sys.stderr",
        "VLLM_NO_USAGE_STATS": "1",
        # Above this many outputs vLLM yields within a step, which would tear the step into several frames.
        "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": str(max(128, max_sequences)),
        "TOKENIZERS_PARALLELISM": "false",  # the engine forks
    }
    if tensor_parallel_size > 1 and len(cpus) >= tensor_parallel_size:
        wanted["VLLM_CPU_OMP_THREADS_BIND"] = cpu_ranges(cpus, tensor_parallel_size)
        wanted["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"
    return {name: value for name, value in wanted.items() if name not in current}


def cpu_ranges(cpus: Sequence[int], ranks: int) -> str:
    """The processors in `ranks` equal parts, as vLLM wants them: `0,1|2,3`."""
    share = len(cpus) // ranks
    ordered = sorted(cpus)
    parts = [ordered[rank * share : (rank + 1) * share] for rank in range(ranks)]
    return "|".join(",".join(str(cpu) for cpu in part) for part in parts)
