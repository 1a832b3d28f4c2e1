"""Log probabilities in both of OpenAI's shapes.

A token's entry comes as (token id, log probability, [(alternative id, log probability), ...]), best alternative first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.gateway.text.detokenizer import Vocabulary

    Entry = tuple[int, float, Sequence[tuple[int, float]]]

FLOOR = -9999.0
"""Stands for minus infinity, which JSON can't say; OpenAI's own figure."""


def _finite(logprob: float) -> float:
    return logprob if logprob > FLOOR else FLOOR


def chat_logprobs(vocabulary: Vocabulary, entries: Sequence[Entry], top: int) -> dict[str, Any]:
    """`logprobs` of a chat choice: {"content": [...]}, each with its `top` best alternatives."""

    def one(token: int, logprob: float) -> dict[str, Any]:
        return {
            "token": vocabulary.token_text(token),
            "logprob": _finite(logprob),
            "bytes": vocabulary.token_bytes(token),
        }

    return {
        "content": [
            {**one(token, logprob), "top_logprobs": [one(other, value) for other, value in alternatives[:top]]}
            for token, logprob, alternatives in entries
        ],
        "refusal": None,
    }


def completion_logprobs(
    vocabulary: Vocabulary, entries: Sequence[Entry], top: int, *, text_offset: int = 0
) -> dict[str, Any]:
    """`logprobs` of a text completion: {"tokens", "token_logprobs", "top_logprobs", "text_offset"}.

    `text_offset` is the length of the text before these tokens; carry it on with `text_length`.
    """
    tokens, offsets = [], []
    for token, _, _ in entries:
        tokens.append(vocabulary.token_text(token))
        offsets.append(text_offset)
        text_offset += len(tokens[-1])
    return {
        "tokens": tokens,
        "token_logprobs": [_finite(logprob) for _, logprob, _ in entries],
        "top_logprobs": [_alternatives(vocabulary, alternatives[:top]) for _, _, alternatives in entries]
        if top
        else None,
        "text_offset": offsets,
    }


def text_length(logprobs: dict[str, Any]) -> int:
    """Length of the text of a `completion_logprobs` object."""
    return sum(len(token) for token in logprobs["tokens"])


def _alternatives(vocabulary: Vocabulary, alternatives: Sequence[tuple[int, float]]) -> dict[str, float]:
    """Text -> log probability; of tokens that show the same text the best one counts."""
    shown: dict[str, float] = {}
    for token, logprob in alternatives:
        shown.setdefault(vocabulary.token_text(token), _finite(logprob))
    return shown
