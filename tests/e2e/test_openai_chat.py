"""The openai-python client against a running mesh, as an application uses it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import openai
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openai.types.chat import ChatCompletionMessageParam, ChatCompletionTokenLogprob, ChatCompletionToolParam

    from tests.e2e.harness import Mesh

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "How does a penstock work?"}]
TOOL: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


@pytest.fixture
def client(sim_mesh: Mesh) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{sim_mesh.base_url}/v1", api_key=sim_mesh.api_key, max_retries=0, timeout=60) as made:
        yield made


def test_a_chat(sim_mesh: Mesh, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=sim_mesh.model, messages=HI, max_tokens=20)
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 20
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + 20
    assert answer.choices[0].finish_reason == "length"
    assert answer.model == sim_mesh.model


def test_an_answer_that_ends_by_itself(sim_mesh: Mesh, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(model=sim_mesh.model, messages=HI, temperature=0)
    assert answer.choices[0].finish_reason == "stop"


def test_a_stream_says_what_the_whole_answer_says(sim_mesh: Mesh, client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=sim_mesh.model, messages=HI, max_tokens=40)
    text, usage, reasons = "", None, []
    stream = client.chat.completions.create(
        model=sim_mesh.model, messages=HI, max_tokens=40, stream=True, stream_options={"include_usage": True}
    )
    for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert text == whole.choices[0].message.content
    assert usage is not None
    assert whole.usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert reasons == ["length"]


def test_several_choices_differ_and_repeat(sim_mesh: Mesh, client: openai.OpenAI) -> None:
    def ask() -> list[str | None]:
        answer = client.chat.completions.create(model=sim_mesh.model, messages=HI, n=2, max_tokens=12, seed=3)
        return [choice.message.content for choice in answer.choices]

    first = ask()
    assert first[0] != first[1]
    assert ask() == first


def test_several_choices_in_one_stream(sim_mesh: Mesh, client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=sim_mesh.model, messages=HI, n=3, max_tokens=15)
    texts = ["", "", ""]
    for chunk in client.chat.completions.create(model=sim_mesh.model, messages=HI, n=3, max_tokens=15, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert texts == [choice.message.content for choice in whole.choices]


def test_a_stop_string_ends_the_answer_before_it(sim_mesh: Mesh, client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model=sim_mesh.model, messages=HI, max_tokens=60)
    text = whole.choices[0].message.content or ""
    stop = text[20:24]
    cut = client.chat.completions.create(model=sim_mesh.model, messages=HI, max_tokens=60, stop=[stop])
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    assert cut.usage is not None
    assert cut.usage.completion_tokens < 60


@pytest.mark.parametrize("streamed", [True, False])
def test_log_probabilities_one_for_each_token(sim_mesh: Mesh, client: openai.OpenAI, streamed: bool) -> None:
    rows: list[ChatCompletionTokenLogprob] = []
    fields: dict[str, Any] = {"max_tokens": 9, "logprobs": True, "top_logprobs": 3}
    if streamed:
        for chunk in client.chat.completions.create(model=sim_mesh.model, messages=HI, stream=True, **fields):
            for choice in chunk.choices:
                rows += choice.logprobs.content or [] if choice.logprobs else []
    else:
        answer = client.chat.completions.create(model=sim_mesh.model, messages=HI, **fields)
        assert answer.choices[0].logprobs is not None
        rows = answer.choices[0].logprobs.content or []
    assert len(rows) == 9
    assert all(row.logprob <= 0 and len(row.top_logprobs) == 3 and row.bytes for row in rows)


def test_text_completions(sim_mesh: Mesh, client: openai.OpenAI) -> None:
    whole = client.completions.create(model=sim_mesh.model, prompt="Water", max_tokens=25)
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 25
    stream = client.completions.create(model=sim_mesh.model, prompt="Water", max_tokens=25, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == whole.choices[0].text
    probs = (
        client.completions.create(model=sim_mesh.model, prompt="Water", max_tokens=4, logprobs=2).choices[0].logprobs
    )
    assert probs is not None
    assert len(probs.tokens or []) == len(probs.token_logprobs or []) == 4


def test_models(sim_mesh: Mesh, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [sim_mesh.model]
    assert client.models.retrieve(sim_mesh.model).owned_by == "penstock"


def test_tools_are_taken_and_what_the_engine_can_not_do_is_refused_by_name(
    sim_mesh: Mesh, client: openai.OpenAI
) -> None:
    answer = client.chat.completions.create(
        model=sim_mesh.model, messages=HI, tools=[TOOL], tool_choice="auto", max_tokens=8
    )
    assert answer.choices[0].finish_reason in ("length", "stop", "tool_calls")
    refused: list[tuple[dict[str, Any], str]] = [
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"presence_penalty": 1}, "presence_penalty"),
        ({"logit_bias": {"5": 1}}, "logit_bias"),
    ]
    for fields, param in refused:
        with pytest.raises(openai.BadRequestError, match=f"{param} is not supported by {sim_mesh.model}") as caught:
            client.chat.completions.create(model=sim_mesh.model, messages=HI, **fields)
        assert (caught.value.param, caught.value.code) == (param, "unsupported")


@pytest.mark.parametrize("prompt", ["", "x" * 1000, "🌍" * 100, "word " * 40_000])
def test_contents_of_many_sizes(sim_mesh: Mesh, client: openai.OpenAI, prompt: str) -> None:
    answer = client.chat.completions.create(
        model=sim_mesh.model, messages=[{"role": "user", "content": prompt}], max_tokens=3
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    assert answer.usage.prompt_tokens > len(prompt) / 20


def test_every_gateway_gives_the_same_answer(sim_mesh: Mesh) -> None:
    answers = set()
    for address in sim_mesh.addresses("gateway"):
        with openai.OpenAI(base_url=f"http://{address}/v1", api_key=sim_mesh.api_key, max_retries=0) as client:
            answer = client.chat.completions.create(model=sim_mesh.model, messages=HI, max_tokens=30)
            answers.add(answer.choices[0].message.content)
    assert len(answers) == 1
