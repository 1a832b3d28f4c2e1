"""Requests: what is taken, and for everything else a status and the field's name."""

from __future__ import annotations

import json
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from services.common.errors import InvalidRequestError, UnsupportedError, status_of
from services.gateway.openai import known
from services.gateway.openai.schemas import DEPTH_MAX, ChatCompletionRequest, CompletionRequest, parse
from tests.unit.gateway.openai.bad_requests import (
    BAD_BODIES,
    BAD_CHATS,
    BAD_COMPLETIONS,
    CALL,
    TOOL,
    UNSERVED,
    USER,
    chat,
    completion,
    message,
    nested,
    schema,
)  # fmt: skip


@pytest.mark.parametrize(("body", "words"), BAD_BODIES)
def test_bad_bodies(body: bytes, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as raised:
        parse("chat", body)
    assert status_of(raised.value).http == 400


@pytest.mark.parametrize(("body", "param"), BAD_CHATS)
def test_bad_chats(body: bytes, param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse("chat", body)
    assert raised.value.param == param
    assert status_of(raised.value).http == 400
    assert param in raised.value.message
    assert "pydantic" not in raised.value.message
    assert "http" not in raised.value.message


@pytest.mark.parametrize(("body", "param"), BAD_COMPLETIONS)
def test_bad_completions(body: bytes, param: str) -> None:
    with pytest.raises(InvalidRequestError) as raised:
        parse("completion", body)
    assert raised.value.param == param
    assert param in raised.value.message


@pytest.mark.parametrize(("kind", "field", "value"), UNSERVED)
def test_fields_that_are_not_served_say_so(kind: Any, field: str, value: Any) -> None:
    body = chat(**{field: value}) if kind == "chat" else completion(**{field: value})
    with pytest.raises(UnsupportedError, match=field) as raised:
        parse(kind, body)
    assert raised.value.param == field


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "refusal"])
def test_parts_that_are_not_text_say_they_are_out_for_now(kind: str) -> None:
    part = {"type": kind, kind: {}}
    with pytest.raises(UnsupportedError, match="out for now") as raised:
        parse("chat", message(role="user", content=[{"type": "text", "text": "x"}, part]))
    assert raised.value.param == "messages[1].content[1].type"


@pytest.mark.parametrize("value", [None, "", [], {}])
def test_nothing_is_taken_for_any_field(value: Any) -> None:
    for field in [*known.CHAT, "some_new_field"]:
        parse("chat", chat(**{field: value}))
    for field in [*known.COMPLETION, "some_new_field"]:
        parse("completion", completion(**{field: value}))


def test_null_is_taken_for_every_field_of_ours() -> None:
    given_fields = {"model", "messages", "prompt"}
    parse("chat", chat(**dict.fromkeys(set(ChatCompletionRequest.model_fields) - given_fields)))
    parse("completion", completion(**dict.fromkeys(set(CompletionRequest.model_fields) - given_fields)))


def test_defaults_of_what_is_not_served_are_taken() -> None:
    for field, values in known.CHAT.items():
        for value in values:
            parse("chat", chat(**{field: value}))
    for field, values in known.COMPLETION.items():
        for value in values:
            parse("completion", completion(**{field: value}))


def test_no_field_of_openais_is_unknown() -> None:
    asked = set(get_type_hints(chat_create_params.CompletionCreateParamsBase)) - set(ChatCompletionRequest.model_fields)
    assert asked <= set(known.CHAT)
    asked = set(get_type_hints(completion_create_params.CompletionCreateParamsBase))
    assert asked - set(CompletionRequest.model_fields) <= set(known.COMPLETION)


def test_a_whole_chat() -> None:
    request = parse(
        "chat",
        chat(
            messages=[
                {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
                {"role": "user", "content": "é\u0000", "name": "ann"},
                {"role": "assistant", "content": None, "tool_calls": [CALL], "refusal": None, "annotations": []},
                {"role": "tool", "tool_call_id": "c", "content": "12"},
            ],
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": "f"}},
            stream=True,
            stream_options={"include_usage": True, "include_obfuscation": False},
            stop="END",
            max_completion_tokens=7,
            max_tokens=7,
            logit_bias={"12": -1},
            logprobs=True,
            top_logprobs=3,
            service_tier="flex",
            top_k=-1,
            store=False,
            metadata={"a": "b"},
        ),
    )
    assert request.stop == ["END"]
    assert request.token_limit == 7
    assert request.logit_bias == {12: -1.0}
    assert request.include_usage
    assert request.alternatives == 3
    assert request.priority_class == "batch"
    assert request.top_k == 0
    assert request.forces_tool
    assert request.forced_name == "f"
    assert request.tool_dicts() == [TOOL]
    assert request.template_messages() == [
        {"role": "developer", "content": "a\nb"},
        {"role": "user", "content": "é\u0000", "name": "ann"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": {}}}],
        },
        {"role": "tool", "content": "12", "tool_call_id": "c"},
    ]


@pytest.mark.parametrize("prompt", ["hi", ["hi"]])
def test_one_prompt_as_text(prompt: Any) -> None:
    assert parse("completion", completion(prompt=prompt)).prompt == "hi"


@pytest.mark.parametrize("prompt", [[1, 2], [[1, 2]]])
def test_one_prompt_as_token_ids(prompt: Any) -> None:
    assert parse("completion", completion(prompt=prompt)).prompt == [1, 2]


def test_strict_tools_are_fine_where_they_are_enforced() -> None:
    strict = {"type": "function", "function": {"name": "f", "strict": True}}
    assert parse("chat", chat(tools=[strict], tool_choice="required")).forces_tool


def test_tools_that_may_not_be_called_leave_the_format_alone() -> None:
    request = parse("chat", chat(tools=[TOOL], tool_choice="none", response_format={"type": "json_object"}))
    assert not request.calls_tools


@pytest.mark.parametrize(
    ("tier", "name"),
    [(None, None), ("auto", None), ("default", None), ("priority", "interactive"), ("standard", "standard")],
)
def test_service_tiers(tier: str | None, name: str | None) -> None:
    assert parse("chat", chat(service_tier=tier)).priority_class == name


def test_depth_is_bounded() -> None:
    parse("chat", schema(nested(DEPTH_MAX - 4)))
    with pytest.raises(InvalidRequestError, match="64 levels"):
        parse("chat", schema(nested(DEPTH_MAX)))
    with pytest.raises(InvalidRequestError, match="64 levels"):
        parse("chat", chat(nothing=nested(500)))


def test_a_wide_body_is_not_a_deep_one() -> None:
    parse("chat", chat(messages=USER * 1000))


def test_tokenize_takes_a_prompt_or_messages() -> None:
    assert parse("tokenize", b'{"model": "m", "prompt": ""}').special_tokens
    request = parse("tokenize", json.dumps({"model": "m", "messages": USER}).encode())
    assert not request.special_tokens
    assert request.template_messages() == USER
    for body in (b'{"model": "m"}', json.dumps({"model": "m", "prompt": "a", "messages": USER}).encode()):
        with pytest.raises(InvalidRequestError, match="either prompt or messages"):
            parse("tokenize", body)


def test_detokenize_takes_ids() -> None:
    assert parse("detokenize", b'{"model": "m", "tokens": [1, 2]}').tokens == [1, 2]
    with pytest.raises(InvalidRequestError) as raised:
        parse("detokenize", b'{"model": "m", "tokens": [1, -2]}')
    assert raised.value.param == "tokens[1]"


def test_messages_name_the_value_that_was_found() -> None:
    with pytest.raises(InvalidRequestError, match=r"temperature must be at most 2, not 3\.5\."):
        parse("chat", chat(temperature=3.5))
    with pytest.raises(InvalidRequestError, match="messages is required"):
        parse("chat", b'{"model": "m"}')
    with pytest.raises(InvalidRequestError, match="or 'tool', not \"robot\""):
        parse("chat", message(role="robot"))
    with pytest.raises(InvalidRequestError, match="n must be an integer, not an object"):
        parse("chat", chat(n={"a": 1}))


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=8), children, max_size=3),
    max_leaves=6,
)
field_names = st.sampled_from(
    sorted({*ChatCompletionRequest.model_fields, *CompletionRequest.model_fields, *known.CHAT})
)


@given(fields=st.dictionaries(field_names, json_values, max_size=4), kind=st.sampled_from(["chat", "completion"]))
def test_any_json_is_a_request_or_a_clear_error(fields: dict[str, Any], kind: Any) -> None:
    base: dict[str, Any] = {"model": "m", "messages": USER} if kind == "chat" else {"model": "m", "prompt": "hi"}
    try:
        parse(kind, json.dumps(base | fields).encode())
    except InvalidRequestError as error:
        assert error.param  # anything but this error fails the test


@given(body=st.binary(max_size=200))
def test_any_bytes_are_a_clear_error(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        parse("chat", body)
