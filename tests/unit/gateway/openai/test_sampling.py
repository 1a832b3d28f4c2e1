"""Requests become sampling parameters; the model's defaults fill what they leave unset."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from services.common.card import CardMeta
from services.common.errors import InvalidRequestError, UnsupportedError
from services.gateway.openai.sampling import check_prompt_tokens, deterministic, sampling_params
from services.gateway.openai.schemas import ChatCompletionRequest, CompletionRequest, parse

if TYPE_CHECKING:
    from services.common.card import Capability

ABLE: tuple[Capability, ...] = ("logprobs", "structured_output", "penalties", "logit_bias", "sampling")
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def meta(*capabilities: Capability, **generation: float) -> CardMeta:
    return CardMeta(
        model="m",
        version="v",
        engine="sim",
        context_length=64,
        vocab_size=100,
        max_logprobs=5,
        capabilities=capabilities,
        generation=generation,
    )


def chat(**fields: Any) -> ChatCompletionRequest:
    return parse("chat", json.dumps({"model": "m", "messages": [{"role": "user", "content": "x"}]} | fields).encode())


def completion(**fields: Any) -> CompletionRequest:
    return parse("completion", json.dumps({"model": "m", "prompt": "x"} | fields).encode())


def test_neutral_where_nobody_says_anything() -> None:
    params = sampling_params(chat(), meta(), max_tokens=9)
    assert (params.max_tokens, params.temperature, params.top_p, params.top_k) == (9, 1.0, 1.0, 0)
    assert (params.min_p, params.repetition_penalty) == (0.0, 1.0)
    assert not params.HasField("seed")
    assert not params.HasField("logprobs")
    assert params.WhichOneof("structured") is None
    assert list(params.stop_token_ids) == []


def test_the_models_defaults_fill_what_is_unset() -> None:
    model = meta(temperature=0.6, top_p=0.9, top_k=20.0, min_p=0.1, repetition_penalty=1.1)
    params = sampling_params(chat(top_p=0.5), model, max_tokens=9)
    assert (params.temperature, params.top_p, params.top_k) == (0.6, 0.5, 20)
    assert (params.min_p, params.repetition_penalty) == (0.1, 1.1)
    assert sampling_params(chat(top_k=-1), model, max_tokens=9).top_k == 0
    assert sampling_params(chat(temperature=0), model, max_tokens=9).temperature == 0
    assert sampling_params(chat(), meta(top_k=-1), max_tokens=9).top_k == 0


def test_everything_that_is_asked_for_arrives() -> None:
    request = completion(
        seed=-3,
        logprobs=5,
        logit_bias={"99": -100},
        presence_penalty=1,
        frequency_penalty=-1,
        min_tokens=4,
        ignore_eos=True,
    )
    params = sampling_params(request, meta(*ABLE), max_tokens=9)
    assert (params.seed, params.logprobs, dict(params.logit_bias)) == (-3, 5, {99: -100.0})
    assert (params.presence_penalty, params.frequency_penalty) == (1.0, -1.0)
    assert (params.min_tokens, params.ignore_eos) == (4, True)


def test_logprobs_without_alternatives_are_not_none() -> None:
    params = sampling_params(chat(logprobs=True), meta(*ABLE), max_tokens=9)
    assert params.HasField("logprobs")
    assert params.logprobs == 0


def test_structure() -> None:
    def structured(**fields: Any) -> Any:
        return sampling_params(chat(**fields), meta(*ABLE), max_tokens=9)

    assert structured(response_format={"type": "json_object"}).json_object
    assert structured(response_format={"type": "text"}).WhichOneof("structured") is None
    schema = {"type": "object", "properties": {"ü": {"type": "string"}}}
    named = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert json.loads(structured(response_format=named).json_schema) == schema
    assert "ü" in structured(response_format=named).json_schema
    assert json.loads(structured(tools=[TOOL], tool_choice="required").json_schema)["required"] == ["name", "arguments"]
    function = {"type": "function", "function": {"name": "f"}}
    assert json.loads(structured(tools=[TOOL], tool_choice=function).json_schema) == TOOL["function"]["parameters"]  # type: ignore[index]
    assert structured(tools=[TOOL]).WhichOneof("structured") is None


@pytest.mark.parametrize(
    ("fields", "capability", "param"),
    [
        ({"presence_penalty": 1}, "penalties", "presence_penalty"),
        ({"frequency_penalty": 1}, "penalties", "frequency_penalty"),
        ({"repetition_penalty": 1.5}, "penalties", "repetition_penalty"),
        ({"logit_bias": {"1": 1}}, "logit_bias", "logit_bias"),
        ({"logprobs": True}, "logprobs", "logprobs"),
        ({"response_format": {"type": "json_object"}}, "structured_output", "response_format"),
        ({"tools": [TOOL], "tool_choice": "required"}, "structured_output", "tool_choice"),
    ],
)
def test_what_the_engine_can_not_do_is_refused(fields: dict[str, Any], capability: Capability, param: str) -> None:
    sampling_params(chat(**fields), meta(capability), max_tokens=9)
    without = meta(*(each for each in ABLE if each != capability))
    with pytest.raises(UnsupportedError, match=param) as raised:
        sampling_params(chat(**fields), without, max_tokens=9)
    assert raised.value.param == param


def test_neutral_values_need_no_capability() -> None:
    neutral = {
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "repetition_penalty": 1,
        "logit_bias": {},
        "logprobs": False,
    }
    sampling_params(chat(**neutral, response_format={"type": "text"}), meta(), max_tokens=9)


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (chat(logit_bias={"100": 1}), "logit_bias"),
        (chat(min_tokens=10), "min_tokens"),
        (chat(logprobs=True, top_logprobs=6), "top_logprobs"),
        (completion(logprobs=6), "logprobs"),
    ],
)
def test_what_the_model_has_no_room_for(request_: ChatCompletionRequest | CompletionRequest, param: str) -> None:
    with pytest.raises(InvalidRequestError, match=param) as raised:
        sampling_params(request_, meta(*ABLE), max_tokens=9)
    assert raised.value.param == param


def test_prompt_tokens_are_in_the_vocabulary() -> None:
    check_prompt_tokens([0, 99], meta())
    with pytest.raises(InvalidRequestError, match="100") as raised:
        check_prompt_tokens([0, 100], meta())
    assert raised.value.param == "prompt"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [({}, False), ({"temperature": 0}, True), ({"seed": 0}, True), ({"temperature": 0.1}, False)],
)
def test_deterministic(fields: dict[str, Any], expected: bool) -> None:
    assert deterministic(chat(**fields)) is expected
