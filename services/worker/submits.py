"""Reads a Submit: everything in it is checked here, so that an engine only sees what it can run. Pure."""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.common.frames import FrameError, decode_tokens

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from penstock.v1 import engine_pb2

    from services.common.card import Capability

HANDLE_MAX = 2**32 - 1
CHOICES_MAX = 128
STOP_TOKENS_MAX = 1_024
LOGIT_BIAS_MAX = 4_096
SCHEMA_CHARS_MAX = 65_536
_REALS = (
    "temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip


class SubmitError(ValueError):
    """A Submit that can't be run; the message begins with the offending field."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a submit is checked against."""

    vocab_size: int
    context_length: int
    max_logprobs: int
    capabilities: tuple[Capability, ...]
    loras: tuple[str, ...]


def read_submit(submit: engine_pb2.Submit, limits: Limits) -> npt.NDArray[np.uint32]:
    """The token ids of `submit`, shape (n,): prompt, then what was already produced.

    Raises:
        SubmitError: a field is wrong; it is named.
    """
    _check_choices(submit)
    try:
        tokens = decode_tokens(submit.prompt)
    except FrameError as error:
        raise SubmitError(f"prompt: {error}") from error
    if not len(tokens):
        raise SubmitError("prompt: it is empty")
    top = int(tokens.max())
    if top >= limits.vocab_size:
        raise SubmitError(f"prompt: token id {top} is not below the vocabulary size {limits.vocab_size}")
    if not 0 < submit.prompt_tokens <= len(tokens):
        raise SubmitError(f"prompt_tokens: {submit.prompt_tokens} of a prompt of {len(tokens)} tokens")
    produced = len(tokens) - submit.prompt_tokens
    if submit.first_index != produced:
        raise SubmitError(f"first_index: it is {submit.first_index}, but {produced} tokens follow the prompt")
    if produced and submit.choices > 1:
        raise SubmitError("choices: choices with produced tokens are submitted one by one")
    if submit.lora and submit.lora not in limits.loras:
        raise SubmitError(f"lora: this worker has no adapter {submit.lora[:100]!r}")
    check_sampling(submit.sampling, len(tokens), limits)
    return tokens


def check_sampling(sampling: engine_pb2.SamplingParams, tokens: int, limits: Limits) -> None:
    """Check what doesn't depend on the engine.

    Raises:
        SubmitError: a field is wrong; it is named.
    """
    if sampling.max_tokens < 1:
        raise SubmitError("sampling.max_tokens: must be at least 1")
    if tokens + sampling.max_tokens > limits.context_length:
        raise SubmitError(
            f"sampling.max_tokens: prompt ({tokens}) and max_tokens ({sampling.max_tokens}) together are over the "
            f"context length of {limits.context_length} tokens"
        )
    if sampling.min_tokens > sampling.max_tokens:
        raise SubmitError(f"sampling.min_tokens: {sampling.min_tokens} is over max_tokens ({sampling.max_tokens})")
    for name in _REALS:
        if not math.isfinite(getattr(sampling, name)):
            raise SubmitError(f"sampling.{name}: must be a finite number")
    if sampling.HasField("logprobs") and sampling.logprobs > limits.max_logprobs:
        raise SubmitError(f"sampling.logprobs: {sampling.logprobs} is over {limits.max_logprobs}")
    _check_ids(sampling, limits.vocab_size)
    _check_structured(sampling, limits)


def _check_choices(submit: engine_pb2.Submit) -> None:
    if not 1 <= submit.choices <= CHOICES_MAX:
        raise SubmitError(f"choices: {submit.choices} is not between 1 and {CHOICES_MAX}")
    if submit.sequence + submit.choices - 1 > HANDLE_MAX:
        raise SubmitError("sequence: the handles of its choices pass 2**32")


def _check_ids(sampling: engine_pb2.SamplingParams, vocab_size: int) -> None:
    if len(sampling.stop_token_ids) > STOP_TOKENS_MAX:
        raise SubmitError(f"sampling.stop_token_ids: more than {STOP_TOKENS_MAX}")
    if len(sampling.logit_bias) > LOGIT_BIAS_MAX:
        raise SubmitError(f"sampling.logit_bias: more than {LOGIT_BIAS_MAX} entries")
    for token, bias in sampling.logit_bias.items():
        if not 0 <= token < vocab_size:
            raise SubmitError(f"sampling.logit_bias: token id {token} is not below the vocabulary size {vocab_size}")
        if not math.isfinite(bias):
            raise SubmitError(f"sampling.logit_bias: the bias of token {token} is not a finite number")


def _check_structured(sampling: engine_pb2.SamplingParams, limits: Limits) -> None:
    field = sampling.WhichOneof("structured")
    if field and "structured_output" not in limits.capabilities:
        raise SubmitError(f"sampling.{field}: this engine has no structured output")
    if field == "json_schema":
        if len(sampling.json_schema) > SCHEMA_CHARS_MAX:
            raise SubmitError(f"sampling.json_schema: more than {SCHEMA_CHARS_MAX} characters")
        try:
            json.loads(sampling.json_schema)
        except (ValueError, RecursionError) as error:
            raise SubmitError(f"sampling.json_schema: it is not JSON: {error}") from error


class HandleSet:
    """Handles used on a stream, as ranges, so that a counting gateway costs two numbers for ever."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []  # exclusive

    def __len__(self) -> int:
        """Ranges held."""
        return len(self._starts)

    def add(self, first: int, count: int) -> bool:
        """Mark `count` handles from `first` as used; False (and nothing marked) when one of them was used before."""
        at = bisect_right(self._starts, first)
        end = first + count
        if (at and self._ends[at - 1] > first) or (at < len(self._starts) and self._starts[at] < end):
            return False
        joins_left = at > 0 and self._ends[at - 1] == first
        joins_right = at < len(self._starts) and self._starts[at] == end
        if joins_left and joins_right:
            self._ends[at - 1] = self._ends[at]
            del self._starts[at], self._ends[at]
        elif joins_left:
            self._ends[at - 1] = end
        elif joins_right:
            self._starts[at] = first
        else:
            self._starts.insert(at, first)
            self._ends.insert(at, end)
        return True
