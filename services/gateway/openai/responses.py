"""Bodies of responses that are not streamed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from services.gateway.openai.chunks import Usage


@dataclass(slots=True)
class ChoiceResult:
    """One finished choice. `tool_calls` are the streamed deltas as they came; `merge_calls` puts them together."""

    index: int
    text: str
    finish_reason: str
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    logprobs: dict[str, Any] | None = None


def chat_response(
    response_id: str,
    model: str,
    created: int,
    choices: Iterable[ChoiceResult],
    usage: Usage,
    *,
    fingerprint: str | None = None,
    service_tier: str | None = None,
) -> bytes:
    """A `chat.completion` object."""
    bodies = []
    for choice in choices:
        message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.tool_calls:
            message["content"] = choice.text or None
            message["tool_calls"] = merge_calls(choice.tool_calls)
        bodies.append(
            {
                "index": choice.index,
                "message": message,
                "logprobs": choice.logprobs,
                "finish_reason": choice.finish_reason,
            }
        )
    return _response("chat.completion", response_id, model, created, bodies, usage, fingerprint, service_tier)


def completion_response(
    response_id: str,
    model: str,
    created: int,
    choices: Iterable[ChoiceResult],
    usage: Usage,
    *,
    fingerprint: str | None = None,
    service_tier: str | None = None,
) -> bytes:
    """A `text_completion` object."""
    bodies = [
        {
            "index": choice.index,
            "text": choice.text,
            "logprobs": choice.logprobs,
            "finish_reason": choice.finish_reason,
        }
        for choice in choices
    ]
    return _response("text_completion", response_id, model, created, bodies, usage, fingerprint, service_tier)


def _response(
    kind: str,
    response_id: str,
    model: str,
    created: int,
    choices: list[dict[str, Any]],
    usage: Usage,
    fingerprint: str | None,
    service_tier: str | None,
) -> bytes:
    body: dict[str, Any] = {
        "id": response_id,
        "object": kind,
        "created": created,
        "model": model,
        "choices": choices,
        "usage": usage.body(),
        "system_fingerprint": fingerprint,
    }
    if service_tier is not None:
        body["service_tier"] = service_tier
    return orjson.dumps(body)


def merge_calls(deltas: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """`delta.tool_calls` entries, in order, as the `tool_calls` of one message."""
    calls: dict[int, dict[str, Any]] = {}
    arguments: dict[int, list[str]] = {}
    for delta in deltas:
        index, function = delta["index"], delta["function"]
        if index not in calls:
            calls[index] = {
                "id": delta["id"],
                "type": "function",
                "function": {"name": function["name"], "arguments": ""},
            }
        arguments.setdefault(index, []).append(function["arguments"])
    for index, call in calls.items():
        call["function"]["arguments"] = "".join(arguments[index])
    return [calls[index] for index in sorted(calls)]


def tokenize_response(tokens: Sequence[int], context_length: int) -> bytes:
    """Answer of `/tokenize`: {"count", "max_model_len", "tokens"}, as vLLM's."""
    return orjson.dumps({"count": len(tokens), "max_model_len": context_length, "tokens": list(tokens)})


def detokenize_response(prompt: str) -> bytes:
    """Answer of `/detokenize`: {"prompt"}, as vLLM's."""
    return orjson.dumps({"prompt": prompt})
