"""Two vLLM workers behind one router: the mesh adds nothing to and takes nothing from what vLLM says."""

from __future__ import annotations

import asyncio
import json
import random
from typing import TYPE_CHECKING

import pytest

from tests.e2e.prefixes import hits, prompt
from tests.vllm.mesh.conftest import QUESTIONS
from tests.vllm.mesh.greedy import ask, assert_same, client

if TYPE_CHECKING:
    from services.gateway.text.detokenizer import Vocabulary
    from tests.e2e.harness import Mesh
    from tests.vllm.mesh.conftest import Answer

pytestmark = pytest.mark.vllm


async def test_greedy_output_is_vllms(
    two_workers: Mesh, prompts: list[list[int]], reference: list[Answer], vocabulary: Vocabulary
) -> None:
    assert_same(await ask(two_workers, prompts), reference, vocabulary)


async def test_sixteen_streams_at_once(two_workers: Mesh, reference: list[Answer], vocabulary: Vocabulary) -> None:
    async def stream(question: str) -> str:
        text = ""
        chunks = await api.chat.completions.create(
            model="nano", messages=[{"role": "user", "content": question}], temperature=0, max_tokens=48, stream=True
        )
        async for chunk in chunks:
            text += chunk.choices[0].delta.content or ""
        return text

    async with client(two_workers) as api, asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(stream(question)) for question in QUESTIONS * 2]
    texts = [task.result() for task in streams]
    assert texts[: len(QUESTIONS)] == texts[len(QUESTIONS) :]
    for text, answer in zip(texts, reference, strict=False):
        detokenizer = vocabulary.detokenizer()
        assert text == detokenizer.push(answer.tokens) + detokenizer.flush()


async def test_structured_output_is_valid_json(two_workers: Mesh) -> None:
    schema = {
        "type": "object",
        "properties": {"digit": {"type": "integer", "minimum": 0, "maximum": 9}, "ok": {"type": "boolean"}},
        "required": ["digit", "ok"],
        "additionalProperties": False,
    }
    async with client(two_workers) as api:
        answer = await api.chat.completions.create(
            model="nano",
            messages=[{"role": "user", "content": "Answer in JSON."}],
            response_format={"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}},
            temperature=0,
            max_tokens=200,
        )
    value = json.loads(answer.choices[0].message.content or "")
    assert set(value) == {"digit", "ok"}
    assert value["digit"] in range(10)
    assert isinstance(value["ok"], bool)


async def test_the_model_calls_a_tool(two_workers: Mesh) -> None:
    tool = {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
    async with client(two_workers) as api:
        answer = await api.chat.completions.create(
            model="nano",
            messages=[{"role": "user", "content": "What is the weather in Paris?"}],
            tools=[tool],  # type: ignore[list-item]
            temperature=0,
        )
    assert answer.choices[0].finish_reason == "tool_calls"
    calls = answer.choices[0].message.tool_calls
    assert calls
    assert calls[0].type == "function"
    assert calls[0].function.name == "get_weather"
    assert json.loads(calls[0].function.arguments) == {"city": "Paris"}


async def test_a_shared_prompt_goes_to_the_worker_that_has_it(two_workers: Mesh) -> None:
    """For every prompt anew, so that chance would fail; as many tokens are cached as the router expected."""
    async with client(two_workers) as api:
        for seed in range(8):
            tokens = prompt(seed, 600)
            assert await hits(api, tokens) == (0, 0)
            assert await hits(api, tokens) == (512, 512)  # whole blocks of 128
            assert await hits(api, tokens[:300] + prompt(100 + seed, 100)) == (256, 256)


async def test_expected_hits_come_true_under_load(two_workers: Mesh) -> None:
    pick = random.Random(5)
    asked = [prompt(200 + pick.randrange(4), 300) + prompt(300 + number, 20) for number in range(32)]
    async with client(two_workers) as api:
        for seed in range(200, 204):
            await hits(api, prompt(seed, 300))
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(hits(api, tokens)) for tokens in asked]
    results = [task.result() for task in running]
    both = sum(min(pair) for pair in results)
    assert both >= 0.9 * sum(expected for expected, _ in results)
    assert both >= 0.9 * sum(found for _, found in results)
    assert both >= 0.8 * 32 * 256
    assert "precision" not in two_workers.logs("router-0")  # said when a worker isn't trusted


async def test_a_worker_killed_in_mid_stream(
    two_workers: Mesh, reference: list[Answer], prompts: list[list[int]], vocabulary: Vocabulary
) -> None:
    """Last in this file: the streams of the dead worker go on at the other one, with the same tokens."""
    story = QUESTIONS.index("Tell me a story")
    begun = [asyncio.Event() for _ in range(4)]

    async def stream(number: int) -> str:
        text = ""
        chunks = await api.completions.create(
            model="nano", prompt=prompts[story], temperature=0, max_tokens=48, stream=True
        )
        async for chunk in chunks:
            text += chunk.choices[0].text
            begun[number].set()
        return text

    async with client(two_workers) as api, asyncio.TaskGroup() as tasks:
        streams = [tasks.create_task(stream(number)) for number in range(len(begun))]
        for event in begun:
            await event.wait()
        two_workers.kill("worker-0")
    detokenizer = vocabulary.detokenizer()
    expected = detokenizer.push(reference[story].tokens) + detokenizer.flush()
    assert [task.result() for task in streams] == [expected] * len(begun)
