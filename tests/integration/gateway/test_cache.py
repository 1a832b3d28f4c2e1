"""The response cache behind the doors: a hit is the same answer, and nobody needs it."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

from services.common.frames import FinishReason
from tests.integration.gateway.doors import CACHING_KEY, KEY, OTHER_KEY, until
from tests.integration.gateway.mesh import running_cache
from tests.integration.gateway.peers import ids

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from services.cache.app import CacheApp
    from tests.integration.gateway.conftest import Scene, Stage
    from tests.integration.gateway.doors import Answer

TEXT = "The valve opens 🌍."


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine is not what is tested."""
    monkeypatch.setattr("services.gateway.cache.GET_TIMEOUT_S", 10.0)


@asynccontextmanager
async def cached(stage: Stage) -> AsyncIterator[tuple[Scene, CacheApp]]:
    """A scene with a cache."""
    async with running_cache() as (cache, address), stage(cache=address) as scene:
        yield scene, cache


async def generated(scene: Scene, text: str = TEXT, **fields: Any) -> Answer:
    """An answer that the worker had to make, stored when it may be."""
    answer = asyncio.create_task(scene.door.chat(**fields))
    await (await scene.worker.submit()).text(text)
    whole = await answer
    await stored(scene)
    return whole


async def stored(scene: Scene) -> None:
    """Until writes under way are done."""
    cache = scene.door.gateway._cache
    await until(lambda: cache is None or not cache._running)


async def test_a_hit_is_the_same_answer_without_a_worker(stage: Stage) -> None:
    async with cached(stage) as (scene, _):
        first = await generated(scene, temperature=0, cache=True)
        assert first.headers["x-penstock-cache"] == "miss"
        again = await scene.door.chat(temperature=0, cache=True)
        assert again.headers["x-penstock-cache"] == "hit"
        assert again.body["choices"] == first.body["choices"]
        assert again.body["usage"]["completion_tokens"] == first.body["usage"]["completion_tokens"]
        assert again.body["id"] != first.body["id"]
        streamed = await scene.door.chat(temperature=0, cache=True, stream=True)
        assert (streamed.headers["x-penstock-cache"], streamed.text(), streamed.done) == ("hit", TEXT, True)
        assert [event.id for event in streamed.events if event.id] == [str(len(ids(TEXT)) - 1), str(len(ids(TEXT)))]
        assert scene.worker.submits.empty
        assert await scene.door.metric("penstock_response_cache_total", result="hit") == 2


async def test_several_choices_stops_and_ends_come_back_as_they_were(stage: Stage) -> None:
    fields: dict[str, Any] = {"seed": 7, "cache": True, "n": 2, "stop": ["opens"]}
    async with cached(stage) as (scene, _):
        answer = asyncio.create_task(scene.door.chat(**fields))
        attached = await scene.worker.submit()
        await attached.send(ids(TEXT), choice=0)
        await attached.send(ids("short"), choice=1, finish=FinishReason.LENGTH)
        first = await answer
        await stored(scene)
        again = await scene.door.chat(**fields)
        assert again.headers["x-penstock-cache"] == "hit"
        assert again.body["choices"] == first.body["choices"]
        assert [c["finish_reason"] for c in again.body["choices"]] == ["stop", "length"]


@pytest.mark.parametrize(
    "other",
    [
        {"key": OTHER_KEY}, {"content": "other"}, {"max_tokens": 5}, {"n": 2}, {"stop": ["x"]}, {"top_p": 0.5},
        {"temperature": None, "seed": 1},
    ],
)  # fmt: skip
async def test_another_request_or_tenant_does_not_hit(stage: Stage, other: dict[str, Any]) -> None:
    async with cached(stage) as (scene, _):
        await generated(scene, temperature=0, cache=True)
        asked = asyncio.create_task(scene.door.chat(**{"temperature": 0, "cache": True, **other}))
        attached = await scene.worker.submit()
        for choice in range(attached.submit.choices):
            await attached.text("x", choice=choice)
        assert (await asked).headers["x-penstock-cache"] == "miss"


@pytest.mark.parametrize(
    ("key", "fields", "state"),
    [
        (KEY, {"temperature": 0}, "off"),
        (KEY, {"cache": True}, "off"),  # random: never the same twice
        (KEY, {"cache": True, "temperature": 0, "logprobs": True}, "off"),
        (CACHING_KEY, {"temperature": 0}, "miss"),
        (CACHING_KEY, {"temperature": 0, "cache": False}, "off"),
        (CACHING_KEY, {}, "off"),
        (KEY, {"cache": True, "seed": 0}, "miss"),
    ],
)
async def test_when_the_cache_is_asked(stage: Stage, key: str, fields: dict[str, Any], state: str) -> None:
    async with cached(stage) as (scene, _):
        answer = asyncio.create_task(scene.door.chat(key=key, **fields))
        tokens = ids("ab")
        logprobs = [-0.5, -0.5] if "logprobs" in fields else None
        await (await scene.worker.submit()).send(tokens, logprobs=logprobs, finish=FinishReason.STOP)
        assert (await answer).headers["x-penstock-cache"] == state


async def test_a_failed_or_cut_answer_is_not_stored(stage: Stage) -> None:
    async with cached(stage) as (scene, _):
        asked = asyncio.create_task(scene.door.chat(temperature=0, cache=True))
        await (await scene.worker.submit()).send(ids("half"), finish=FinishReason.FAILED)
        assert (await asked).status == 500
        assert (await generated(scene, temperature=0, cache=True)).headers["x-penstock-cache"] == "miss"


async def test_without_the_cache_service_answers_go_on(stage: Stage) -> None:
    async with cached(stage) as (scene, cache):
        await generated(scene, temperature=0, cache=True)
        await cache.stop()
        answer = await generated(scene, temperature=0, cache=True)
        assert (answer.status, answer.headers["x-penstock-cache"]) == (200, "miss")
        assert await scene.door.metric("penstock_response_cache_total", result="degraded") >= 1
        assert (await scene.door.get("/health/ready")).status == 200


async def test_of_many_who_ask_the_same_at_once_one_generates(stage: Stage) -> None:
    async with cached(stage) as (scene, _):
        asked = [
            asyncio.create_task(scene.door.chat(temperature=0, cache=True, stream=number % 2 == 1))
            for number in range(6)
        ]
        await (await scene.worker.submit()).text(TEXT)
        answers = [await task for task in asked]
        states = [answer.headers["x-penstock-cache"] for answer in answers]
        assert states.count("miss") == 1
        assert set(states) <= {"miss", "shared", "hit"}
        assert scene.worker.submits.empty


async def test_when_the_one_that_generates_fails_the_next_takes_over(stage: Stage) -> None:
    async with cached(stage) as (scene, _):
        asked = [asyncio.create_task(scene.door.chat(temperature=0, cache=True)) for _ in range(3)]
        await (await scene.worker.submit()).send(ids("half"), finish=FinishReason.FAILED)
        await (await scene.worker.submit()).text(TEXT)
        answers = [await task for task in asked]
        assert sorted(answer.status for answer in answers) == [200, 200, 500]
        assert scene.worker.submits.empty


async def test_when_the_one_that_generates_is_cancelled_the_next_takes_over(stage: Stage) -> None:
    async with cached(stage) as (scene, _):
        first = asyncio.create_task(scene.door.chat(temperature=0, cache=True, stream=True))
        await scene.worker.submit()
        others = [asyncio.create_task(scene.door.chat(temperature=0, cache=True)) for _ in range(2)]
        first.cancel()
        await (await scene.worker.submit()).text(TEXT)
        assert {(await task).status for task in others} == {200}
        assert scene.worker.submits.empty


async def test_who_waits_too_long_generates_alone(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.cache.WAIT_S_MAX", 0.05)
    async with cached(stage) as (scene, _):
        asked = [asyncio.create_task(scene.door.chat(temperature=0, cache=True)) for _ in range(2)]
        for submit in [await scene.worker.submit() for _ in asked]:
            await submit.text(TEXT)
        assert {(await task).headers["x-penstock-cache"] for task in asked} == {"miss"}
