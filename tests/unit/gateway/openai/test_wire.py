"""What goes out, read back with the openai client's own types."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from services.common.errors import ContendedError, InvalidRequestError, PayloadTooLargeError, PenstockError
from services.gateway.openai.chunks import ChatChunks, CompletionChunks, Usage
from services.gateway.openai.errors import error_body, error_headers
from services.gateway.openai.logprobs import chat_logprobs, completion_logprobs, text_length
from services.gateway.openai.responses import (
    ChoiceResult,
    chat_response,
    completion_response,
    detokenize_response,
    tokenize_response,
)
from services.gateway.text.detokenizer import Vocabulary
from tests.unit.gateway.text import tokenizers_made as made

USAGE = Usage(prompt_tokens=5, completion_tokens=7, cached_tokens=4)


def chat_chunks(**options: Any) -> ChatChunks:
    return ChatChunks("chatcmpl-1", 'm"é', 1700000000, include_usage=options.pop("include_usage", False), **options)


def read(data: bytes) -> ChatCompletionChunk:
    """Strictly: an unknown or missing field is a failure."""
    chunk = ChatCompletionChunk.model_validate_json(data, strict=True)
    assert not chunk.model_extra
    return chunk


@given(text=st.text(), choice=st.integers(0, 15))
def test_text_is_what_the_general_path_would_say(text: str, choice: int) -> None:
    chunks = chat_chunks(fingerprint="fp", include_usage=True)
    assert json.loads(chunks.text(choice, text)) == json.loads(chunks.delta(choice, {"content": text}))
    chunk = read(chunks.text(choice, text))
    assert chunk.choices[0].delta.content == text
    assert chunk.choices[0].index == choice


@given(text=st.text(), choice=st.integers(0, 15))
def test_completion_text_is_what_the_general_path_would_say(text: str, choice: int) -> None:
    chunks = CompletionChunks("cmpl-1", "m", 1, include_usage=False)
    assert json.loads(chunks.text(choice, text)) == json.loads(chunks.delta(choice, text))
    assert json.loads(chunks.text(choice, text))["choices"][0]["text"] == text


def test_a_whole_chat_stream() -> None:
    chunks = chat_chunks(fingerprint="fp", service_tier="default")
    first, text, last = read(chunks.role(0)), read(chunks.text(0, "hi")), read(chunks.finish(0, "stop"))
    for chunk in (first, text, last):
        assert (chunk.id, chunk.model, chunk.created) == ("chatcmpl-1", 'm"é', 1700000000)
        assert (chunk.object, chunk.system_fingerprint) == ("chat.completion.chunk", "fp")
        assert chunk.service_tier == "default"
        assert "usage" not in chunk.model_fields_set
    assert (first.choices[0].delta.role, first.choices[0].delta.content) == ("assistant", "")
    assert (text.choices[0].finish_reason, last.choices[0].finish_reason) == (None, "stop")
    assert last.choices[0].delta.content is None


def test_with_usage_every_chunk_says_so() -> None:
    chunks = chat_chunks(include_usage=True)
    for data in (chunks.role(0), chunks.text(0, "x"), chunks.delta(1, {}), chunks.finish(0, "length")):
        assert json.loads(data)["usage"] is None
    last = read(chunks.usage(USAGE))
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.total_tokens == 12
    assert last.usage.prompt_tokens_details is not None
    assert last.usage.prompt_tokens_details.cached_tokens == 4


def test_tool_call_deltas() -> None:
    call = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    delta = read(chat_chunks().delta(0, {"tool_calls": [call]})).choices[0].delta
    assert delta.tool_calls is not None
    assert delta.tool_calls[0].model_dump() == call


def test_a_whole_completion_stream() -> None:
    chunks = CompletionChunks("cmpl-1", "m", 1, include_usage=True, fingerprint="fp")
    assert chunks.role(0) is None
    for data in (chunks.finish(2, "stop"), chunks.usage(USAGE)):
        completion = Completion.model_validate_json(data, strict=True)
        assert (completion.object, completion.system_fingerprint) == ("text_completion", "fp")
    assert json.loads(chunks.text(2, "x"))["choices"][0] == {
        "index": 2,
        "text": "x",
        "logprobs": None,
        "finish_reason": None,
    }
    assert json.loads(chunks.text(2, "x"))["usage"] is None


def test_a_chat_body() -> None:
    deltas: list[dict[str, Any]] = [
        {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{"}},
        {"index": 0, "function": {"arguments": "}"}},
        {"index": 1, "id": "call_2", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    choices = [ChoiceResult(0, "hi", "stop"), ChoiceResult(1, "", "tool_calls", tool_calls=deltas)]
    data = chat_response("chatcmpl-1", "m", 1, choices, USAGE, fingerprint="fp", service_tier="flex")
    body = ChatCompletion.model_validate_json(data, strict=True)
    assert not body.model_extra
    assert body.choices[0].message.content == "hi"
    assert body.choices[0].message.tool_calls is None
    assert body.choices[1].message.content is None
    calls = body.choices[1].message.tool_calls
    assert calls is not None
    assert [call.to_dict()["function"] for call in calls] == [
        {"name": "f", "arguments": "{}"},
        {"name": "g", "arguments": "{}"},
    ]
    assert body.usage is not None
    assert (body.usage.total_tokens, body.system_fingerprint, body.service_tier) == (12, "fp", "flex")


def test_a_completion_body() -> None:
    data = completion_response("cmpl-1", "m", 1, [ChoiceResult(0, "hi", "length")], USAGE)
    body = Completion.model_validate_json(data, strict=True)
    assert (body.choices[0].text, body.choices[0].finish_reason) == ("hi", "length")
    assert "service_tier" not in json.loads(data)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    tokenizer = made.byte_level()
    return Vocabulary.from_tokenizer(tokenizer, vocab_size=tokenizer.get_vocab_size(with_added_tokens=True))


def test_chat_logprobs(vocabulary: Vocabulary) -> None:
    first, second, *_ = made.byte_level().encode("🚀").ids
    entries = [(first, -0.5, [(first, -0.5), (second, -2.0)]), (second, -math.inf, [(first, -1.0), (second, -9.0)])]
    logprobs = chat_logprobs(vocabulary, entries, top=1)
    content = read(chat_chunks().delta(0, {"content": "x"}, logprobs)).choices[0].logprobs
    assert content is not None
    assert content.content is not None
    assert content.content[0].bytes == vocabulary.token_bytes(first)
    assert len(content.content[0].top_logprobs) == 1
    assert content.content[1].logprob == -9999.0


def test_completion_logprobs(vocabulary: Vocabulary) -> None:
    ids = made.byte_level().encode("water runs").ids
    entries = [(token, -1.0, [(token, -1.0), (ids[0], -3.0)]) for token in ids]
    logprobs = completion_logprobs(vocabulary, entries, top=2, text_offset=10)
    data = CompletionChunks("c", "m", 1, include_usage=False).finish(0, "stop")
    choice = json.loads(data)["choices"][0] | {"logprobs": logprobs}
    body = Completion.model_validate(json.loads(data) | {"choices": [choice]}, strict=True)
    read_back = body.choices[0].logprobs
    assert read_back is not None
    assert read_back.tokens is not None
    assert read_back.text_offset is not None
    assert "".join(read_back.tokens) == "water runs"
    for token, offset in zip(read_back.tokens, read_back.text_offset, strict=True):
        assert "water runs"[offset - 10 :].startswith(token)
    assert text_length(logprobs) == len("water runs")
    assert completion_logprobs(vocabulary, entries, top=0)["top_logprobs"] is None


def test_errors() -> None:
    error = InvalidRequestError("n must be at most 16, not 17.", param="n")
    assert json.loads(error_body(error, "req-1")) == {
        "error": {
            "message": "n must be at most 16, not 17.",
            "type": "invalid_request_error",
            "param": "n",
            "code": "invalid_request",
            "request_id": "req-1",
        }
    }
    assert "request_id" not in json.loads(error_body(error, None))["error"]
    assert error_headers(error, "req-1") == {"x-request-id": "req-1"}
    assert json.loads(error_body(PayloadTooLargeError("x"), None))["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("seconds", "header"), [(0.2, "1"), (1.0, "1"), (1.2, "2"), (0.0, "1")])
def test_retry_after_is_in_whole_seconds(seconds: float, header: str) -> None:
    assert error_headers(ContendedError("full", retry_after_s=seconds), None) == {"Retry-After": header}
    assert error_headers(PenstockError("x"), None) == {}


def test_tokenize_bodies() -> None:
    assert json.loads(tokenize_response([1, 2], 64)) == {"count": 2, "max_model_len": 64, "tokens": [1, 2]}
    assert json.loads(detokenize_response("é")) == {"prompt": "é"}
