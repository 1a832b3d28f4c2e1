"""Made-up prompts, and what the router expected of the prefix cache against what it did."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import openai


def prompt(seed: int, tokens: int) -> list[int]:
    """Any ordinary tokens of nano, the same for the same seed."""
    return random.Random(seed).choices(range(300, 1_000), k=tokens)


async def hits(api: openai.AsyncOpenAI, tokens: list[int], max_tokens: int = 4) -> tuple[int, int]:
    """Tokens of the prompt that the router expected to be cached, and that were. The answer has `max_tokens`."""
    raw = await api.completions.with_raw_response.create(
        model="nano", prompt=tokens, max_tokens=max_tokens, extra_body={"ignore_eos": True}
    )
    usage = raw.parse().usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return int(raw.headers["x-penstock-matched-tokens"]), usage.prompt_tokens_details.cached_tokens or 0
