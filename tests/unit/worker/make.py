"""Requests for the tests of this folder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from penstock.v1 import engine_pb2

from services.common.frames import encode_tokens
from services.worker.engine.base import EngineRequest

if TYPE_CHECKING:
    from collections.abc import Sequence


def sampling(**fields: Any) -> engine_pb2.SamplingParams:
    """Sampling parameters; max_tokens 4 unless said otherwise."""
    return engine_pb2.SamplingParams(**{"max_tokens": 4, **fields})


def request(id_: int, tokens: Sequence[int], *, produced: int = 0, choice: int = 0, priority: int = 0, salt: str = "",
            **fields: Any) -> EngineRequest:  # fmt: skip
    """A sequence whose last `produced` of `tokens` were produced elsewhere."""
    return EngineRequest(
        id=id_,
        tokens=np.array(tokens, dtype=np.uint32),
        prompt_tokens=len(tokens) - produced,
        choice=choice,
        sampling=sampling(**fields),
        priority=priority,
        cache_salt=salt,
    )


def submit(sequence: int, tokens: Sequence[int] = (1, 2, 3), **fields: Any) -> engine_pb2.Submit:
    """A good Submit; `fields` replace its fields, `sampling` the sampling parameters."""
    values: dict[str, Any] = {
        "sequence": sequence,
        "response_id": f"resp-{sequence}",
        "attempt": 1,
        "prompt": encode_tokens(tokens),
        "prompt_tokens": len(tokens),
        "choices": 1,
        "sampling": sampling(),
    }
    return engine_pb2.Submit(**{**values, **fields})
