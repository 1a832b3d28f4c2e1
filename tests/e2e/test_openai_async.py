"""The asynchronous openai-python client: many streams at once, and leaving early."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import openai

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.e2e.harness import Mesh


@asynccontextmanager
async def client_of(mesh: Mesh) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{mesh.base_url}/v1", api_key=mesh.api_key, max_retries=0, timeout=60
    ) as made:
        yield made


async def streamed(client: openai.AsyncOpenAI, model: str, number: int) -> str:
    stream = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": f"Question {number}"}], max_tokens=40, stream=True
    )
    return "".join([c.delta.content or "" async for chunk in stream for c in chunk.choices])


async def whole(client: openai.AsyncOpenAI, model: str, number: int) -> str | None:
    answer = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": f"Question {number}"}], max_tokens=40
    )
    return answer.choices[0].message.content


async def test_many_streams_at_once_each_get_their_own_answer(sim_mesh: Mesh) -> None:
    async with client_of(sim_mesh) as client:
        streams = await asyncio.gather(*(streamed(client, sim_mesh.model, number) for number in range(24)))
        wholes = await asyncio.gather(*(whole(client, sim_mesh.model, number) for number in range(24)))
    assert streams == wholes
    assert len(set(streams)) == 24


async def test_a_stream_that_is_left_does_not_disturb_the_next(sim_mesh: Mesh) -> None:
    async with client_of(sim_mesh) as client:
        expected = await streamed(client, sim_mesh.model, 1)
        for _ in range(5):
            stream = await client.chat.completions.create(
                model=sim_mesh.model, messages=[{"role": "user", "content": "long"}], max_tokens=2000, stream=True
            )
            async for _chunk in stream:
                break
            await stream.close()
        assert await streamed(client, sim_mesh.model, 1) == expected


async def test_completions_and_models(sim_mesh: Mesh) -> None:
    async with client_of(sim_mesh) as client:
        answer = await client.completions.create(model=sim_mesh.model, prompt="Water", max_tokens=5, n=2)
        assert len(answer.choices) == 2
        assert [model.id async for model in client.models.list()] == [sim_mesh.model]
