"""Chat templates: transformers' dialect, bounded, with errors that say whose they are."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from services.common.card import CardError
from services.common.errors import InvalidRequestError, UnsupportedError
from services.gateway.text.template import RENDERED_CHARS_MAX, ChatTemplate, NoTemplate
from services.gateway.text.tools import calls_in_message

NANO = Path(__file__).parents[4] / "models" / "nano" / "chat_template.jinja"
HELLO = [{"role": "user", "content": "hi <b>&'\"é"}]


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, bos_token="<s>", eos_token=None, now=lambda: datetime(2026, 5, 1, tzinfo=UTC))


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}", "<s>hi <b>&'\"é"),
        ("{{ messages[0] | tojson }}", '{"role": "user", "content": "hi <b>&\'\\"é"}'),
        ("{% for m in messages %}\n{{ m['role'] }}\n{% endfor %}", "user\n"),
        ("{% for i in range(5) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{{ strftime_now('%d %b %Y') }}", "01 May 2026"),
        ("{% generation %}x{% endgeneration %}y", "xy"),
        ("{% if tools is none %}none{% endif %}{% if add_generation_prompt %}go{% endif %}", "nonego"),
        ("{{ '-' * 3 }}{{ 2 * 3 }}", "---6"),
    ],
)
def test_dialect(source: str, expected: str) -> None:
    assert template(source).render(HELLO) == expected


def test_arguments_reach_the_template() -> None:
    source = "{{ tools[0].name }}{{ add_generation_prompt }}{{ enable_thinking }}"
    rendered = template(source).render(HELLO, [{"name": "f"}], add_generation_prompt=False, enable_thinking=True)
    assert rendered == "fFalseTrue"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[7].content.x.y }}", "no element 7"),
        ("{{ messages[0].content + 1 }}", "str"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% for i in range(1000000) %}x{% endfor %}", "too big|too large"),
        ("{{ 'x' * 100000000 }}", "too long"),
        ("{{ 9 ** 9999999 }}", "not available"),
        ("{{ messages[0].missing() }}", "undefined|no attribute"),
    ],
)
def test_what_goes_wrong_in_it_names_messages(source: str, words: str) -> None:
    with pytest.raises(InvalidRequestError, match=words) as raised:
        template(source).render(HELLO)
    assert raised.value.param == "messages"


def test_output_is_bounded() -> None:
    long = [{"role": "user", "content": "x" * (RENDERED_CHARS_MAX // 4)}]
    with pytest.raises(InvalidRequestError, match="over"):
        template("{% for i in range(5) %}{{ messages[0].content }}{% endfor %}").render(long)


def test_a_broken_template_is_the_cards_fault() -> None:
    with pytest.raises(CardError, match="line 2"):
        template("a\n{% if %}")


def test_without_a_template_completions_are_the_way() -> None:
    with pytest.raises(UnsupportedError, match="/v1/completions"):
        NoTemplate("base").render(HELLO)


def test_the_bundled_models_template_takes_a_whole_tool_conversation() -> None:
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}]
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "1 + 1?"},
        calls_in_message({"role": "assistant", "content": "", "tool_calls": [call]}),
        {"role": "tool", "content": "2", "tool_call_id": "c"},
    ]
    rendered = ChatTemplate(NANO.read_text(encoding="utf-8"), bos_token=None, eos_token=None).render(messages, tools)
    system, *turns = rendered.split("<|im_start|>")[1:]
    assert system.startswith("system\nBe brief.\n\n")
    assert '{"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}' in system
    assert turns == [
        "user\n1 + 1?<|im_end|>\n",
        'assistant\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>\n',
        "user\n<tool_response>\n2\n</tool_response><|im_end|>\n",
        "assistant\n",
    ]
