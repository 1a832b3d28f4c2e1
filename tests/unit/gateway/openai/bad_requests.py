"""Requests that must be refused, each with the field that the error must name."""

from __future__ import annotations

import json
from typing import Any

USER = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": USER} | fields).encode()


def completion(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "prompt": "hi"} | fields).encode()


def message(**fields: Any) -> bytes:
    return chat(messages=[*USER, fields])


def tool(**fields: Any) -> bytes:
    return chat(tools=[{"type": "function", "function": {"name": "f"} | fields}])


def schema(value: Any, **fields: Any) -> bytes:
    return chat(response_format={"type": "json_schema", "json_schema": {"name": "n", "schema": value} | fields})


def nested(depth: int) -> Any:
    return json.loads('{"a":' * depth + "1" + "}" * depth)


BAD_BODIES = [
    (b"", "empty"),
    (b"  ", "empty"),
    (b"{", "not valid JSON"),
    (b"nonsense", "not valid JSON"),
    (b'{"model": NaN}', "not valid JSON"),
    (b'{"model": Infinity}', "not valid JSON"),
    (b'{"model": "\xff"}', "not valid UTF-8 at byte 11"),
    (b'{"model": "\\ud800"}', "not valid JSON"),
    (b"[]", "must be a JSON object"),
    (b'"model"', "must be a JSON object"),
    (b"null", "must be a JSON object"),
    (b"[" * 5000 + b"]" * 5000, "not valid JSON"),
]

BAD_CHATS = [
    (b"{}", "model"),
    (b'{"model": "m"}', "messages"),
    (chat(model=""), "model"),
    (chat(model=3), "model"),
    (chat(model=None), "model"),
    (chat(model="m" * 257), "model"),
    (chat(messages=[]), "messages"),
    (chat(messages="hi"), "messages"),
    (chat(messages=["hi"]), "messages[0]"),
    (chat(messages=None), "messages"),
    (message(content="x"), "messages[1].role"),
    (message(role="robot", content="x"), "messages[1].role"),
    (message(role="function", content="x", name="f"), "messages[1].role"),
    (message(role="user"), "messages[1].content"),
    (message(role="user", content=3), "messages[1].content"),
    (message(role="user", content=[3]), "messages[1].content[0]"),
    (message(role="user", content=[{"text": "x"}]), "messages[1].content[0].type"),
    (message(role="user", content=[{"type": "text"}]), "messages[1].content[0].text"),
    (message(role="user", content="x", colour="red"), "messages[1].colour"),
    (message(role="user", content="x", tool_calls=[CALL]), "messages[1].tool_calls"),
    (message(role="user", content="x", tool_call_id="c"), "messages[1].tool_call_id"),
    (message(role="tool", content="x"), "messages[1].tool_call_id"),
    (message(role="assistant", tool_calls=[{"id": "c"}]), "messages[1].tool_calls[0].function"),
    (
        message(role="assistant", tool_calls=[CALL | {"function": {"name": "f", "arguments": {}}}]),
        "messages[1].tool_calls[0].function.arguments",
    ),
    (chat(stream="yes"), "stream"),
    (chat(stream_options={"include_usage": True}), "stream_options"),
    (chat(stream=True, stream_options={"include_usage": 1}), "stream_options.include_usage"),
    (chat(stream=True, stream_options={"colour": 1}), "stream_options.colour"),
    (chat(n=0), "n"),
    (chat(n=17), "n"),
    (chat(n=1.5), "n"),
    (chat(n=True), "n"),
    (chat(stop=3), "stop"),
    (chat(stop=""), "stop[0]"),
    (chat(stop=["a", ""]), "stop[1]"),
    (chat(stop=["a", 3]), "stop[1]"),
    (chat(stop=["a"] * 17), "stop"),
    (chat(stop="x" * 257), "stop[0]"),
    (chat(seed="1"), "seed"),
    (chat(seed=2**63), "seed"),
    (chat(temperature=-0.1), "temperature"),
    (chat(temperature=2.1), "temperature"),
    (chat(temperature="hot"), "temperature"),
    (chat(top_p=0), "top_p"),
    (chat(top_p=1.1), "top_p"),
    (chat(top_k=-2), "top_k"),
    (chat(top_k=1.5), "top_k"),
    (chat(min_p=1.5), "min_p"),
    (chat(presence_penalty=2.5), "presence_penalty"),
    (chat(frequency_penalty=-3), "frequency_penalty"),
    (chat(repetition_penalty=0), "repetition_penalty"),
    (chat(logit_bias=[]), "logit_bias"),
    (chat(logit_bias={"x": 1}), "logit_bias"),
    (chat(logit_bias={"-1": 1}), "logit_bias"),
    (chat(logit_bias={"9" * 30: 1}), "logit_bias"),
    (chat(logit_bias={"1": 101}), "logit_bias.1"),
    (chat(logit_bias={"1": True}), "logit_bias.1"),
    (chat(max_tokens=0), "max_tokens"),
    (chat(max_tokens=-5), "max_tokens"),
    (chat(max_tokens=2**31), "max_tokens"),
    (chat(max_tokens=5, max_completion_tokens=6), "max_completion_tokens"),
    (chat(min_tokens=-1), "min_tokens"),
    (chat(max_tokens=5, min_tokens=6), "min_tokens"),
    (chat(max_completion_tokens=5, min_tokens=6), "min_tokens"),
    (chat(ignore_eos="no"), "ignore_eos"),
    (chat(logprobs=3), "logprobs"),
    (chat(top_logprobs=3), "top_logprobs"),
    (chat(logprobs=True, top_logprobs=21), "top_logprobs"),
    (chat(response_format="json"), "response_format"),
    (chat(response_format={"type": "yaml"}), "response_format.type"),
    (chat(response_format={"type": "json_schema"}), "response_format.json_schema"),
    (schema(None), "response_format.json_schema.schema"),
    (schema([]), "response_format.json_schema.schema"),
    (schema({"type": "nothing"}), "response_format.json_schema.schema.type"),
    (schema({"$defs": {"a": {"type": 3}}}), "response_format.json_schema.schema.$defs.a.type"),
    (schema({"$defs": 3}), "response_format.json_schema.schema.$defs"),
    (schema({"pattern": "("}), "response_format.json_schema.schema.pattern"),
    (schema({"description": "x" * 70_000}), "response_format.json_schema.schema"),
    (schema({}, name="no spaces"), "response_format.json_schema.name"),
    (chat(user=3), "user"),
    (chat(metadata={"a": 1}), "metadata.a"),
    (chat(metadata=["a"]), "metadata"),
    (chat(metadata={str(i): "" for i in range(17)}), "metadata"),
    (chat(service_tier="gold"), "service_tier"),
    (chat(cache="yes"), "cache"),
    (chat(tools={}), "tools"),
    (chat(tools=[{}]), "tools[0].type"),
    (chat(tools=[{"type": "custom", "custom": {"name": "x"}}]), "tools[0].custom"),
    (tool(name=None), "tools[0].function.name"),
    (tool(name="two words"), "tools[0].function.name"),
    (tool(parameters=[]), "tools[0].function.parameters"),
    (tool(parameters={"type": 3}), "tools[0].function.parameters.type"),
    (tool(strict=True), "tools[0].function.strict"),
    (chat(tools=[{"type": "function", "function": {"name": "f", "description": "x" * 140_000}}]), "tools"),
    (chat(tools=[TOOL] * 129), "tools"),
    (chat(tools=[TOOL, TOOL]), "tools[1].function.name"),
    (chat(tool_choice="required"), "tool_choice"),
    (chat(tools=[TOOL], tool_choice="f"), "tool_choice"),
    (chat(tools=[TOOL], tool_choice={"type": "function"}), "tool_choice.function.name"),
    (chat(tools=[TOOL], tool_choice={"type": "allowed_tools"}), "tool_choice.type"),
    (chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}), "tool_choice"),
    (chat(tools=[TOOL], response_format={"type": "json_object"}), "response_format"),
    (chat(parallel_tool_calls="no"), "parallel_tool_calls"),
    (chat(colour="red"), "colour"),
    (chat(prompt="hi"), "prompt"),
]

BAD_COMPLETIONS = [
    (b'{"model": "m"}', "prompt"),
    (completion(prompt=3), "prompt"),
    (completion(prompt=""), "prompt"),
    (completion(prompt=[]), "prompt"),
    (completion(prompt=[[]]), "prompt[0]"),
    (completion(prompt=["a", "b"]), "prompt"),
    (completion(prompt=[[1], [2]]), "prompt"),
    (completion(prompt=[1, "a"]), "prompt[1]"),
    (completion(prompt=[1, -1]), "prompt[1]"),
    (completion(prompt=[2**32]), "prompt[0]"),
    (completion(prompt=[True]), "prompt[0]"),
    (completion(prompt=[[1, None]]), "prompt[0][1]"),
    (completion(logprobs=21), "logprobs"),
    (completion(logprobs=True), "logprobs"),
    (completion(echo=True), "echo"),
    (completion(suffix="x"), "suffix"),
    (completion(best_of=2), "best_of"),
    (completion(best_of=True), "best_of"),
    (completion(messages=USER), "messages"),
]

UNSERVED = [
    ("chat", "audio", {"voice": "alloy"}),
    ("chat", "modalities", ["text", "audio"]),
    ("chat", "prediction", {"type": "content", "content": "x"}),
    ("chat", "functions", [{"name": "f"}]),
    ("chat", "function_call", {"name": "f"}),
    ("chat", "reasoning_effort", "high"),
    ("chat", "verbosity", "high"),
    ("chat", "web_search_options", {"user_location": None}),
    ("chat", "prompt_cache_key", "k"),
    ("chat", "safety_identifier", "u"),
    ("chat", "store", True),
    ("completion", "best_of", 3),
    ("completion", "store", True),
]
