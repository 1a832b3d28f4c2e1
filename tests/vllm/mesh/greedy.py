"""Greedy answers through the mesh, and how they are held against vLLM's own (DESIGN section 4)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import openai

from tests.vllm.mesh.reference import MAX_TOKENS

if TYPE_CHECKING:
    from services.gateway.text.detokenizer import Vocabulary
    from tests.e2e.harness import Mesh
    from tests.vllm.mesh.conftest import Answer

NEAR = 1e-3
"""Two best log probabilities closer than this may come out either way round."""


def client(mesh: Mesh) -> openai.AsyncOpenAI:
    """The real client library, without retries."""
    return openai.AsyncOpenAI(base_url=f"{mesh.base_url}/v1", api_key=mesh.api_key, max_retries=0, timeout=60)


async def ask(mesh: Mesh, prompts: list[list[int]], model: str = "nano") -> list[list[str]]:
    """Texts of the tokens of each greedy answer, all asked at once."""
    async with client(mesh) as api, asyncio.TaskGroup() as tasks:
        asked = [
            tasks.create_task(
                api.completions.create(model=model, prompt=prompt, temperature=0, max_tokens=MAX_TOKENS, logprobs=0)
            )
            for prompt in prompts
        ]
        answers = [await each for each in asked]
    out = []
    for answer in answers:
        logprobs = answer.choices[0].logprobs
        assert logprobs is not None
        assert logprobs.tokens is not None
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(logprobs.tokens)
        out.append(logprobs.tokens)
    return out


def assert_same(answers: list[list[str]], reference: list[Answer], vocabulary: Vocabulary) -> None:
    """Token for token, except from where the reference itself was undecided."""
    assert len(answers) == len(reference)
    for answer, wanted in zip(answers, reference, strict=True):
        expected = [vocabulary.token_text(token) for token in wanted.tokens]
        at = next((i for i, (a, b) in enumerate(zip(answer, expected, strict=False)) if a != b), None)
        if at is None:
            assert len(answer) == len(expected)
        else:
            first, second = wanted.best[at]
            assert first - second < NEAR, (
                f"token {at} is {answer[at]!r}, vLLM says {expected[at]!r} ({first}, {second})"
            )
