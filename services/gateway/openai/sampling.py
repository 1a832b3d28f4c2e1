"""From a validated request to the engine's sampling parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson
from penstock.v1 import engine_pb2

from services.common.errors import InvalidRequestError, UnsupportedError
from services.gateway.openai.schemas import ChatCompletionRequest
from services.gateway.text.forced import forced_schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.common.card import Capability, CardMeta
    from services.gateway.openai.schemas import GenerationRequest

_NEUTRAL: dict[str, float] = {"temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sampling fields that a model has defaults for, and their values where neither it nor the request says anything.

None of them needs a capability: whatever a simulator writes stands for one possible draw.
"""

_PENALTIES: dict[str, float] = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0}


def sampling_params(request: GenerationRequest, meta: CardMeta, *, max_tokens: int) -> engine_pb2.SamplingParams:
    """What the engine is told. End-of-sequence tokens are the engine's own; stop strings are matched here.

    Args:
        max_tokens: per choice, already resolved against the context length and the tenant's cap.

    Raises:
        UnsupportedError: the model's engine can't do what a field asks for.
        InvalidRequestError: a token id is not in the vocabulary, or min_tokens is over max_tokens.
    """
    _check(request, meta)
    if request.min_tokens > max_tokens:
        raise InvalidRequestError(
            f"min_tokens is {request.min_tokens}, but there is room for {max_tokens} tokens.", param="min_tokens"
        )
    drawn = {name: _value(request, meta, name, neutral) for name, neutral in _NEUTRAL.items()}
    params = engine_pb2.SamplingParams(
        max_tokens=max_tokens,
        min_tokens=request.min_tokens,
        temperature=drawn["temperature"],
        top_p=drawn["top_p"],
        top_k=max(0, int(drawn["top_k"])),
        min_p=drawn["min_p"],
        repetition_penalty=drawn["repetition_penalty"],
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        seed=request.seed,
        logprobs=request.alternatives,
        logit_bias=request.logit_bias,
        ignore_eos=request.ignore_eos,
    )
    _set_structure(params, request)
    return params


def deterministic(request: GenerationRequest) -> bool:
    """The client asked for an answer that repeats: temperature 0, or a seed."""
    return request.seed is not None or request.temperature == 0


def check_prompt_tokens(tokens: Sequence[int], meta: CardMeta) -> None:
    """Refuse token ids that the model doesn't have.

    Raises:
        InvalidRequestError: names the largest.
    """
    largest = max(tokens, default=0)
    if largest >= meta.vocab_size:
        raise InvalidRequestError(
            f"prompt holds the token id {largest}; the ids of {meta.model} are below {meta.vocab_size}.", param="prompt"
        )


def _value(request: GenerationRequest, meta: CardMeta, name: str, neutral: float) -> float:
    """The request's value, else the model's, else the one that changes nothing."""
    asked = getattr(request, name)
    return float(meta.generation.get(name, neutral) if asked is None else asked)


def _check(request: GenerationRequest, meta: CardMeta) -> None:
    for name, neutral in _PENALTIES.items():
        if getattr(request, name) not in (None, neutral):
            _need("penalties", name, meta)
    if request.alternatives is not None:
        _need("logprobs", "logprobs", meta)
        _check_alternatives(request, meta)
    if request.logit_bias:
        _need("logit_bias", "logit_bias", meta)
        largest = max(request.logit_bias)
        if largest >= meta.vocab_size:
            raise InvalidRequestError(
                f"logit_bias names the token id {largest}; the ids of {meta.model} are below {meta.vocab_size}.",
                param="logit_bias",
            )
    if request.response_format is not None and request.response_format.type != "text":
        _need("structured_output", "response_format", meta)
    if isinstance(request, ChatCompletionRequest) and request.forces_tool:
        _need("structured_output", "tool_choice", meta)


def _need(capability: Capability, field: str, meta: CardMeta) -> None:
    if capability not in meta.capabilities:
        raise UnsupportedError(f"{field} is not supported by {meta.model} ({meta.engine} engine).", param=field)


def _check_alternatives(request: GenerationRequest, meta: CardMeta) -> None:
    if (request.alternatives or 0) > meta.max_logprobs:
        field = "top_logprobs" if isinstance(request, ChatCompletionRequest) else "logprobs"
        raise InvalidRequestError(
            f"{field} must be at most {meta.max_logprobs} for {meta.model}, not {request.alternatives}.", param=field
        )


def _set_structure(params: engine_pb2.SamplingParams, request: GenerationRequest) -> None:
    if isinstance(request, ChatCompletionRequest) and request.forces_tool:
        choice: Any = request.tool_choice
        params.json_schema = forced_schema(request.tool_dicts(), choice)
    elif request.response_format is not None:
        schema = request.response_format.json_schema
        if schema is not None:
            params.json_schema = orjson.dumps(schema.schema_).decode()
        elif request.response_format.type == "json_object":
            params.json_object = True
