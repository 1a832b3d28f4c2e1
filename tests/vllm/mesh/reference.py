"""vLLM alone: `python -m tests.vllm.mesh.reference MODEL IN.json OUT.json [LORA]`.

IN holds prompts as token ids. OUT is, for each, the greedy token ids and the two best log probabilities per token.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

MAX_TOKENS = 48


def _best_two(logprobs: list[float]) -> list[float]:
    return sorted(logprobs, reverse=True)[:2]


def main(model: str, prompts: Path, out: Path, lora: str | None) -> None:
    """Generate and write."""
    os.environ.update(
        HF_HUB_OFFLINE="1", VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="0", VLLM_CPU_NUM_OF_RESERVED_CPU="0"
    )
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    flags = {"enable_lora": True, "max_lora_rank": 8} if lora else {}
    engine = LLM(model=model, dtype="float32", enforce_eager=True, **flags)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, logprobs=2, detokenize=False)
    results = engine.generate(
        [{"prompt_token_ids": ids} for ids in json.loads(prompts.read_text())],
        params,
        lora_request=LoRARequest("adapter", 1, lora) if lora else None,
    )
    answers = [
        {
            "tokens": list(result.outputs[0].token_ids),
            "best": [_best_two([entry.logprob for entry in row.values()]) for row in result.outputs[0].logprobs],
        }
        for result in results
    ]
    out.write_text(json.dumps(answers))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4] if len(sys.argv) > 4 else None)
