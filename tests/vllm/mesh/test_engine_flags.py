"""vLLM with other flags behind the mesh: tensor parallelism, speculation, LoRA."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tests.e2e.harness import start_mesh
from tests.vllm.mesh.conftest import UP_S_MAX
from tests.vllm.mesh.greedy import ask, assert_same, client

if TYPE_CHECKING:
    from pathlib import Path

    from services.gateway.text.detokenizer import Vocabulary
    from tests.vllm.mesh.conftest import Answer

pytestmark = pytest.mark.vllm


async def test_tensor_parallel_2(
    tmp_path: Path, prompts: list[list[int]], reference: list[Answer], vocabulary: Vocabulary
) -> None:
    with start_mesh(tmp_path / "state", "--tensor-parallel-size", "2", engine="vllm", timeout_s=UP_S_MAX) as mesh:
        assert_same(await ask(mesh, prompts), reference, vocabulary)


async def test_ngram_speculation(
    tmp_path: Path, prompts: list[list[int]], reference: list[Answer], vocabulary: Vocabulary
) -> None:
    """Steps with several tokens per sequence."""
    speculation = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 4, "prompt_lookup_min": 1}
    flags = ("--", "--speculative-config", json.dumps(speculation))
    with start_mesh(tmp_path / "state", *flags, engine="vllm", timeout_s=UP_S_MAX) as mesh:
        assert_same(await ask(mesh, prompts), reference, vocabulary)


async def test_lora_adapter(
    tmp_path: Path,
    prompts: list[list[int]],
    reference: list[Answer],
    lora_reference: list[Answer],
    adapter: Path,
    vocabulary: Vocabulary,
) -> None:
    flags = ("--", "--enable-lora", "--max-lora-rank", "8", "--lora-modules", f"tuned={adapter}")
    with start_mesh(tmp_path / "state", *flags, engine="vllm", timeout_s=UP_S_MAX) as mesh:
        async with client(mesh) as api:
            assert {model.id async for model in api.models.list()} == {"nano", "tuned"}
        assert_same(await ask(mesh, prompts), reference, vocabulary)
        assert_same(await ask(mesh, prompts, model="tuned"), lora_reference, vocabulary)
    assert [answer.tokens for answer in lora_reference] != [answer.tokens for answer in reference]
