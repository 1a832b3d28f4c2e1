"""Tool calls out of text, whatever the split; nothing is lost."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import InvalidRequestError, UnsupportedError
from services.gateway.openai.responses import merge_calls
from services.gateway.text.tools import ForcedToolParser, ToolCallParser, calls_in_message, forced_schema

Parser = ToolCallParser | ForcedToolParser


def run(parser: Parser, text: str, cuts: list[int] | None = None) -> tuple[str, list[dict[str, Any]]]:
    """(content, tool_calls of the message) of `text` fed in pieces."""
    content, last = "", 0
    deltas: list[dict[str, Any]] = []
    for cut in [*sorted(min(cut, len(text)) for cut in cuts or []), len(text)]:
        out = parser.feed(text[last:cut])
        content, deltas, last = content + out.content, deltas + out.tool_calls, cut
    out = parser.finish()
    return content + out.content, merge_calls(deltas + out.tool_calls)


def functions(calls: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Köln", "days": [1, {"a": "}"}]}}\n</tool_call>'

CASES = {
    "plain": ("Hello there.", "Hello there.", []),
    "one call": (WEATHER, "", [("weather", '{"city": "Köln", "days": [1, {"a": "}"}]}')]),
    "content, then a call": (
        "Let me see.\n" + WEATHER,
        "Let me see.\n",
        [("weather", '{"city": "Köln", "days": [1, {"a": "}"}]}')],
    ),
    "two calls": (
        '<tool_call>{"name":"a","arguments":{}}</tool_call>\n<tool_call>{"name":"b","arguments":{"x":1}}</tool_call>\n',
        "",
        [("a", "{}"), ("b", '{"x":1}')],
    ),
    "content after a call": (
        '<tool_call>{"name":"a","arguments":{}}</tool_call>\nDone.',
        "\nDone.",
        [("a", "{}")],
    ),
    "arguments first": ('<tool_call>{"arguments": {"x": "a"}, "name": "f"}</tool_call>', "", [("f", '{"x": "a"}')]),
    "no arguments": ('<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    "null arguments": ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    "arguments encoded twice": (
        '<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>',
        "",
        [("f", '{"x": 1}')],
    ),
    "parameters": ('<tool_call>{"name": "f", "parameters": {"x": 1}}</tool_call>', "", [("f", '{"x": 1}')]),
    "other members": (
        '<tool_call>{"id": 7, "type": "function", "x": [{}], "name": "f", "arguments": {}, "y": true}</tool_call>',
        "",
        [("f", "{}")],
    ),
    "braces and quotes in strings": (
        '<tool_call>{"name": "f", "arguments": {"x": "\\"}{\\\\"}}</tool_call>',
        "",
        [("f", '{"x": "\\"}{\\\\"}')],
    ),
    "a closing tag inside a string": (
        '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}}</tool_call>',
        "",
        [("f", '{"x": "</tool_call>"}')],
    ),
    "no closing tag": ('<tool_call>{"name": "f", "arguments": {}}', "", [("f", "{}")]),
    "cut off in the arguments": ('<tool_call>{"name": "f", "arguments": {"x": "a', "", [("f", '{"x": "a')]),
    "cut off before the name": ('<tool_call>{"na', '<tool_call>{"na', []),
    "not JSON": ("<tool_call>weather in Köln</tool_call>", "<tool_call>weather in Köln</tool_call>", []),
    "an array": ('<tool_call>[{"name": "f"}]</tool_call>', '<tool_call>[{"name": "f"}]</tool_call>', []),
    "no name": ('<tool_call>{"arguments": {}}</tool_call>', '<tool_call>{"arguments": {}}</tool_call>', []),
    "name of a wrong type": ('<tool_call>{"name": 3}</tool_call>', '<tool_call>{"name": 3}</tool_call>', []),
    "empty name": ('<tool_call>{"name": ""}</tool_call>', '<tool_call>{"name": ""}</tool_call>', []),
    "broken escape": ('<tool_call>{"name": "\\x"}</tool_call>', '<tool_call>{"name": "\\x"}</tool_call>', []),
    "broken, then a good one": (
        '<tool_call>oops <tool_call>{"name": "f", "arguments": {}}</tool_call>',
        "<tool_call>oops ",
        [("f", "{}")],
    ),
    "half a tag": ("a <tool_ca", "a <tool_ca", []),
    "blank": (" \n", " \n", []),
    "blank before a call": ('\n\n<tool_call>{"name": "f"}</tool_call>', "", [("f", "{}")]),
    "angle brackets": ("1 < 2 <tool_box> <<tool_call", "1 < 2 <tool_box> <<tool_call", []),
}


@pytest.mark.parametrize("case", CASES)
def test_cases(case: str) -> None:
    text, content, calls = CASES[case]
    found_content, found_calls = run(ToolCallParser("r/0"), text)
    assert (found_content, functions(found_calls)) == (content, calls)


@given(case=st.sampled_from(sorted(CASES)), cuts=st.lists(st.integers(0, 120), max_size=12))
def test_splits_change_nothing(case: str, cuts: list[int]) -> None:
    text = CASES[case][0]
    assert run(ToolCallParser("r/0"), text, cuts) == run(ToolCallParser("r/0"), text)
    assert run(ToolCallParser("r/0"), text, list(range(len(text)))) == run(ToolCallParser("r/0"), text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=4), children, max_size=3),
    max_leaves=8,
)


@given(
    arguments=st.dictionaries(st.text(max_size=6), json_values, max_size=4),
    cuts=st.lists(st.integers(0, 300), max_size=8),
    ascii_only=st.booleans(),
)
def test_any_arguments_survive(arguments: dict[str, Any], cuts: list[int], ascii_only: bool) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only)
    text = f'<tool_call>{{"name": "f", "arguments": {written}}}</tool_call>'
    assert functions(run(ToolCallParser("r/0"), text, cuts)[1]) == [("f", written)]


@given(text=st.text(alphabet='<tool_call>/{}"na e:', max_size=60), cuts=st.lists(st.integers(0, 60), max_size=6))
def test_garbage_is_content(text: str, cuts: list[int]) -> None:
    content, calls = run(ToolCallParser("r/0"), text, cuts)
    if not calls:
        assert content == text


def test_arguments_stream_as_they_come() -> None:
    parser = ToolCallParser("r/0")
    assert not parser.feed('<tool_call>{"name": "f", "argum')
    assert not parser.made_calls
    first = parser.feed('ents": {"x"').tool_calls
    assert first[0]["function"] == {"name": "f", "arguments": '{"x"'}
    assert first[0]["index"] == 0
    assert first[0]["type"] == "function"
    assert parser.made_calls
    assert parser.feed(": 1").tool_calls == [{"index": 0, "function": {"arguments": ": 1"}}]
    assert parser.feed("}}</tool_call>").tool_calls == [{"index": 0, "function": {"arguments": "}"}}]


def test_ids_are_stable_and_different() -> None:
    text = CASES["two calls"][0]
    first, second = (call["id"] for call in run(ToolCallParser("r/0"), text)[1])
    assert first != second
    assert first == run(ToolCallParser("r/0"), text)[1][0]["id"]
    assert first != run(ToolCallParser("r/1"), text)[1][0]["id"]


def test_without_parallel_calls_the_first_one_stays() -> None:
    text = CASES["two calls"][0] + "and more"
    assert functions(run(ToolCallParser("r/0", parallel=False), text)[1]) == [("a", "{}")]
    assert run(ToolCallParser("r/0", parallel=False), text)[0] == ""


TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"where": {"$ref": "#/$defs/place"}},
                "required": ["where"],
                "$defs": {"place": {"type": "string", "minLength": 2}},
            },
        },
    },
    {"type": "function", "function": {"name": "now"}},
]


def test_required_takes_any_tool_and_only_its_arguments() -> None:
    validator = jsonschema.Draft202012Validator(json.loads(forced_schema(TOOLS, "required")))
    assert validator.is_valid({"name": "weather", "arguments": {"where": "Köln"}})
    assert validator.is_valid({"name": "now", "arguments": {}})
    assert not validator.is_valid({"name": "weather", "arguments": {"where": "K"}})
    assert not validator.is_valid({"name": "other", "arguments": {}})
    assert not validator.is_valid({"name": "now"})


def test_one_required_tool_needs_no_alternatives() -> None:
    assert "anyOf" not in json.loads(forced_schema(TOOLS[1:], "required"))


def test_a_named_function_is_its_parameters() -> None:
    schema = forced_schema(TOOLS, {"type": "function", "function": {"name": "weather"}})
    assert json.loads(schema) == TOOLS[0]["function"]["parameters"]  # type: ignore[index]


def test_a_function_that_is_not_there() -> None:
    with pytest.raises(InvalidRequestError, match="nothing") as raised:
        forced_schema(TOOLS, {"type": "function", "function": {"name": "nothing"}})
    assert raised.value.param == "tool_choice"


def test_references_that_can_not_be_moved_are_refused() -> None:
    tree = {"type": "object", "properties": {"child": {"$ref": "#"}}}
    with pytest.raises(UnsupportedError, match=r"\$defs") as raised:
        forced_schema([{"type": "function", "function": {"name": "f", "parameters": tree}}], "required")
    assert raised.value.param == "tools[0].function.parameters"


def test_a_property_called_ref_is_not_a_reference() -> None:
    parameters = {"type": "object", "properties": {"$ref": {"type": "string"}}}
    schema = json.loads(
        forced_schema([{"type": "function", "function": {"name": "f", "parameters": parameters}}], "required")
    )
    assert schema["properties"]["arguments"] == parameters


@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_forced_calls(cuts: list[int]) -> None:
    named = run(ForcedToolParser("r/0", name="f"), '{"x": 1}', cuts)
    assert (named[0], functions(named[1])) == ("", [("f", '{"x": 1}')])
    required = run(ForcedToolParser("r/0", name=None), ' {"name": "f", "arguments": {"x": 1}} ', cuts)
    assert (required[0], functions(required[1])) == ("", [("f", '{"x": 1}')])


def test_a_forced_call_that_never_was_is_content() -> None:
    assert run(ForcedToolParser("r/0", name=None), '{"na', [2]) == ('{"na', [])
    assert run(ForcedToolParser("r/0", name=None), "no call", [2]) == ("no call", [])


def test_template_messages_get_arguments_as_objects() -> None:
    def message(arguments: str) -> dict[str, Any]:
        return {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": arguments}}]}

    assert calls_in_message(message('{"x": 1}'))["tool_calls"][0]["function"]["arguments"] == {"x": 1}
    once = calls_in_message(message('{"x": 1}'))
    assert calls_in_message(once) == once
    assert calls_in_message(message("[1]"))["tool_calls"][0]["function"]["arguments"] == "[1]"
    assert calls_in_message(message("{"))["tool_calls"][0]["function"]["arguments"] == "{"
    assert calls_in_message({"role": "user", "content": "hi"}) == {"role": "user", "content": "hi"}
