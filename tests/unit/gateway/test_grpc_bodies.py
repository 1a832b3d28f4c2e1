"""gRPC requests become the OpenAI requests that say the same."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from penstock.v1 import inference_pb2 as pb

from services.common.errors import InvalidRequestError
from services.gateway.grpc.inference import chat_body, completion_body
from services.gateway.openai.schemas import parse


def chat(**fields: Any) -> pb.ChatRequest:
    return pb.ChatRequest(**{"model": "m", "messages": [pb.ChatMessage(role="user", content="hi")], **fields})


def test_a_bare_chat_leaves_every_default_alone() -> None:
    assert orjson.loads(chat_body(chat())) == {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def test_every_sampling_field_arrives() -> None:
    sampling = pb.Sampling(
        max_tokens=5, temperature=0.0, top_p=0.5, top_k=3, min_p=0.25, presence_penalty=0.5, frequency_penalty=-0.5,
        repetition_penalty=1.5, seed=-(2**62), n=2, stop=["a", "b"], logprobs=0, logit_bias={7: -1.5}, min_tokens=1,
        ignore_eos=True,
    )  # fmt: skip
    asked = parse("chat", chat_body(chat(sampling=sampling)))
    assert (asked.max_tokens, asked.temperature, asked.top_p, asked.top_k, asked.min_p) == (5, 0.0, 0.5, 3, 0.25)
    assert (asked.presence_penalty, asked.frequency_penalty, asked.repetition_penalty) == (0.5, -0.5, 1.5)
    assert (asked.seed, asked.n, asked.stop, asked.logit_bias) == (-(2**62), 2, ["a", "b"], {7: -1.5})
    assert (asked.min_tokens, asked.ignore_eos, asked.alternatives) == (1, True, 0)
    text = parse("completion", completion_body(pb.GenerateRequest(model="m", text="x", sampling=sampling)))
    assert (text.seed, text.n, text.alternatives) == (-(2**62), 2, 0)


def test_structure_and_tools_and_cache() -> None:
    asked = parse("chat", chat_body(chat(sampling=pb.Sampling(json_schema='{"type": "object"}'), cache=False)))
    assert asked.response_format is not None
    assert asked.response_format.json_schema is not None
    assert asked.response_format.json_schema.schema_ == {"type": "object"}
    assert asked.cache is False
    asked = parse("chat", chat_body(chat(sampling=pb.Sampling(json_object=True))))
    assert asked.response_format is not None
    assert asked.response_format.type == "json_object"
    tools = '[{"type": "function", "function": {"name": "f"}}]'
    asked = parse("chat", chat_body(chat(tools_json=tools, tool_choice_json='"required"')))
    assert asked.forces_tool


def test_a_conversation_with_a_tool_call() -> None:
    call = '[{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]'
    messages = [
        pb.ChatMessage(role="user", content="hi"),
        pb.ChatMessage(role="assistant", tool_calls_json=call),
        pb.ChatMessage(role="tool", tool_call_id="c", content="42"),
    ]
    asked = parse("chat", chat_body(chat(messages=messages)))
    assert [message.role for message in asked.messages] == ["user", "assistant", "tool"]
    assert asked.messages[1].content is None


def test_prompts() -> None:
    assert parse("completion", completion_body(pb.GenerateRequest(model="m", text="x"))).prompt == "x"
    by_ids = pb.GenerateRequest(model="m", token_ids=pb.TokenIds(ids=[1, 2]))
    assert parse("completion", completion_body(by_ids)).prompt == [1, 2]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (lambda: completion_body(pb.GenerateRequest(model="m")), "prompt"),
        (lambda: completion_body(pb.GenerateRequest(model="m", text="")), "prompt"),
        (lambda: completion_body(pb.GenerateRequest(model="m", token_ids=pb.TokenIds())), "prompt"),
        (lambda: completion_body(pb.GenerateRequest(text="x")), "model"),
        (lambda: chat_body(chat(messages=[])), "messages"),
        (lambda: chat_body(chat(messages=[pb.ChatMessage(role="king", content="x")])), "messages[0].role"),
        (lambda: chat_body(chat(tools_json="{")), "tools_json"),
        (lambda: chat_body(chat(sampling=pb.Sampling(json_schema="{"))), "sampling.json_schema"),
        (lambda: chat_body(chat(sampling=pb.Sampling(temperature=9))), "temperature"),
        (lambda: chat_body(chat(sampling=pb.Sampling(temperature=float("nan")))), "temperature"),
        (lambda: chat_body(chat(sampling=pb.Sampling(max_tokens=0))), "max_tokens"),
        (lambda: chat_body(chat(sampling=pb.Sampling(logprobs=21))), "top_logprobs"),
        (lambda: chat_body(chat(sampling=pb.Sampling(n=17))), "n"),
        (lambda: chat_body(chat(sampling=pb.Sampling(logit_bias={-1: 1.0}))), "logit_bias"),
    ],
)
def test_bad_fields_are_named(body: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        kind: Any = "chat" if b"messages" in (data := body()) else "completion"
        parse(kind, data)
    assert caught.value.param == param
