"""A response outlives its worker: it goes on elsewhere at the next token, or says clearly why it can't."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from penstock.v1 import dispatch_pb2

from services.common.frames import FinishReason
from tests.integration.gateway.peers import ids

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Stage

TEXT = "The valve opens, 🌍 and water runs."
TOKENS = ids(TEXT)
PROMPT = ids("hi")


async def test_a_worker_that_is_full_bounces_the_lease_and_another_one_gets_it(stage: Stage) -> None:
    async with stage() as scene:
        answer = asyncio.create_task(scene.door.chat())
        first = await scene.worker.submit()
        await first.refuse()
        assert await scene.router.bounces.get() == first.submit.lease
        again = await scene.worker.submit()
        assert again.submit.sequence != first.submit.sequence
        assert again.submit.lease != first.submit.lease
        assert again.submit.attempt == first.submit.attempt  # refused before it began: the same attempt
        await again.text(TEXT)
        assert (await answer).body["choices"][0]["message"]["content"] == TEXT
        assert (await scene.router.releases.get()).outcome == dispatch_pb2.FINISHED


async def test_a_refusal_of_several_choices_is_one_bounce(stage: Stage) -> None:
    async with stage() as scene:
        answer = asyncio.create_task(scene.door.chat(n=3))
        await (await scene.worker.submit()).refuse()
        again = await scene.worker.submit()
        assert again.submit.choices == 3
        for choice in range(3):
            await again.text(f"{choice}", choice=choice)
        body = (await answer).body
        assert [choice["message"]["content"] for choice in body["choices"]] == ["0", "1", "2"]
        await scene.router.bounces.get()
        assert scene.router.bounces.empty


async def test_a_stream_goes_on_at_the_next_token_when_its_worker_dies(stage: Stage) -> None:
    async with stage(workers=2) as scene, scene.door.stream(max_tokens=60, min_tokens=9) as stream:
        first = await scene.worker.submit()
        await first.send(TOKENS[:5])
        await stream.text()
        await scene.worker.stop()
        second = await scene.workers[1].submit()
        assert second.tokens == PROMPT + TOKENS[:5]
        submit = second.submit
        assert (submit.first_index, submit.prompt_tokens) == (5, len(PROMPT))
        assert (submit.attempt, first.submit.attempt) == (1, 0)
        assert submit.response_id == first.submit.response_id
        assert (submit.sampling.max_tokens, submit.sampling.min_tokens) == (55, 4)
        asks = [await scene.router.acquires.get() for _ in range(2)]
        assert list(asks[1].excluded_workers) == [scene.worker.incarnation]
        assert (asks[1].attempt, asks[1].prompt_tokens, asks[1].max_tokens) == (1, len(PROMPT) + 5, 55)
        for token in TOKENS[5:-1]:
            await second.send([token])
        await second.send(TOKENS[-1:], finish=FinishReason.STOP)
        answer = await stream.rest()
    assert answer.text() == TEXT
    assert answer.done
    numbers = [int(event.id) for event in answer.events if event.id is not None]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == len(TOKENS)
    assert "\ufffd" not in answer.text()


async def test_half_a_character_before_the_loss_is_completed_after_it(stage: Stage) -> None:
    globe = ids("🌍")
    async with stage(workers=2) as scene, scene.door.stream() as stream:
        first = await scene.worker.submit()
        await first.send(ids("a") + globe[:1])
        await stream.text()
        await scene.worker.stop()
        second = await scene.workers[1].submit()
        await second.send(globe[1:], finish=FinishReason.STOP)
        assert (await stream.rest()).text() == "a🌍"


async def test_every_open_choice_moves_with_its_own_tokens(stage: Stage) -> None:
    async with stage(workers=2) as scene, scene.door.stream(n=3, max_tokens=20) as stream:
        first = await scene.worker.submit()
        await first.send(ids("zero"), choice=0, finish=FinishReason.STOP)
        await first.send(ids("on"), choice=1)
        await first.send(ids("t"), choice=2)
        while sum(event.id is not None for event in stream.events) < 4:
            await stream.next()
        await scene.worker.stop()
        moved = {}
        for _ in range(2):
            attached = await scene.workers[1].submit()
            moved[attached.submit.first_choice] = attached
        assert {n: a.tokens[len(PROMPT) :] for n, a in moved.items()} == {1: ids("on"), 2: ids("t")}
        left = [20 - len(ids("on")), 20 - len(ids("t"))]
        assert [moved[n].submit.sampling.max_tokens for n in (1, 2)] == left
        asks = [await scene.router.acquires.get() for _ in range(2)]
        longest = len(PROMPT) + len(ids("on"))
        assert (asks[1].choices, asks[1].max_tokens, asks[1].prompt_tokens) == (2, max(left), longest)
        await moved[1].send(ids("e"), finish=FinishReason.STOP)
        await moved[2].send(ids("wo"), finish=FinishReason.STOP)
        answer = await stream.rest()
    assert [answer.text(n) for n in range(3)] == ["zero", "one", "two"]
    counts = [len(ids("zero")), len(ids("on") + ids("e")), len(ids("t") + ids("wo"))]
    assert answer.events[-2].id == ",".join(map(str, counts))
    assert answer.done


async def test_a_worker_lost_before_the_first_token_is_no_news_to_anyone(stage: Stage) -> None:
    async with stage(workers=2) as scene:
        answer = asyncio.create_task(scene.door.chat(n=2, presence_penalty=1.0))
        await scene.worker.submit()
        await scene.worker.stop()
        second = await scene.workers[1].submit()
        assert (second.submit.choices, second.submit.first_index, second.submit.attempt) == (2, 0, 1)
        await second.text("a", choice=0)
        await second.text("b", choice=1)
        assert (await answer).status == 200


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"presence_penalty": 0.5}, "penalties cannot be continued"),
        ({"response_format": {"type": "json_object"}}, "structured output cannot be continued"),
    ],
)
async def test_what_can_not_be_moved_says_so_in_the_stream(stage: Stage, fields: dict[str, Any], words: str) -> None:
    async with stage(workers=2) as scene, scene.door.stream(**fields) as stream:
        await (await scene.worker.submit()).send(TOKENS[:5])
        await stream.text()
        await scene.worker.stop()
        answer = await stream.rest()
    assert not answer.done
    error = answer.events[-1].data["error"]
    assert words in error["message"]
    assert (error["type"], error["code"]) == ("server_error", "engine_error")


async def test_without_another_worker_the_stream_ends_in_an_error_event(stage: Stage) -> None:
    async with stage() as scene:
        async with scene.door.stream(headers={"x-request-id": "mine"}) as stream:
            await (await scene.worker.submit()).send(TOKENS[:5])
            await stream.text()
            await scene.worker.stop()
            answer = await stream.rest()
        assert not answer.done
        error = answer.events[-1].data["error"]
        assert (error["code"], error["request_id"]) == ("service_unavailable", "mine")
        assert answer.text() == TEXT[: len(answer.text())]
        counted = [
            await scene.door.metric("penstock_gateway_requests_total", route="/v1/completions", outcome=outcome)
            for outcome in ("service_unavailable", "ok")
        ]
        assert counted == [1, 0]


async def test_moves_are_bounded(stage: Stage) -> None:
    async with stage(workers=3, moves_max=1) as scene, scene.door.stream() as stream:
        await (await scene.workers[0].submit()).send(TOKENS[:1])
        await stream.text()
        await scene.workers[0].stop()
        await scene.workers[1].submit()
        await scene.workers[1].stop()
        answer = await stream.rest()
    assert "after 1 moves" in answer.events[-1].data["error"]["message"]


async def test_a_whole_answer_that_lost_only_its_end_is_not_made_again(stage: Stage) -> None:
    async with stage(workers=2) as scene, scene.door.stream(max_tokens=4) as stream:
        await (await scene.worker.submit()).send(TOKENS[:4])
        await stream.text()
        await scene.worker.stop()
        answer = await stream.rest()
        assert answer.done
        assert answer.events[-2].choice["finish_reason"] == "length"
        assert scene.workers[1].submits.empty


async def test_late_tokens_of_an_aborted_attempt_are_dropped(stage: Stage) -> None:
    async with stage() as scene, scene.door.stream(stop=["opens"]) as stream:
        attached = await scene.worker.submit()
        await attached.send(TOKENS)
        assert await scene.worker.aborts.get() == attached.submit.sequence
        await attached.send(TOKENS)
        answer = await stream.rest()
        assert (answer.text(), answer.done) == ("The valve ", True)
        assert answer.events[-2].id == str(len(ids("The valve opens")))
        assert scene.worker.aborts.empty


@pytest.mark.parametrize("garbage", [b"", b"\x00", b"garbage" * 100, bytes(64)])
async def test_a_worker_that_sends_garbage_is_lost_not_the_gateway(stage: Stage, garbage: bytes) -> None:
    async with stage(workers=2) as scene:
        answer = asyncio.create_task(scene.door.chat())
        await scene.worker.submit()
        await scene.worker.send_raw(garbage)
        await (await scene.workers[1].submit()).text(TEXT)
        assert (await answer).body["choices"][0]["message"]["content"] == TEXT


@pytest.mark.parametrize(("first", "count"), [(3, None), (None, 9)])
async def test_tokens_that_are_missing_are_an_error_never_a_wrong_answer(
    stage: Stage, first: int | None, count: int | None
) -> None:
    async with stage() as scene:
        answer = asyncio.create_task(scene.door.chat())
        await (await scene.worker.submit()).send(TOKENS[:2], first=first, count=count, finish=FinishReason.STOP)
        assert ((await answer).status, (await answer).error["code"]) == (500, "protocol_error")
        assert (await scene.router.releases.get()).outcome == dispatch_pb2.FAILED


@pytest.mark.parametrize(
    ("reason", "status", "code"),
    [
        (FinishReason.INVALID, 400, "invalid_request"),
        (FinishReason.FAILED, 500, "engine_error"),
        (FinishReason.ABORTED, 500, "engine_error"),
        (FinishReason.DEADLINE, 504, "deadline_exceeded"),
    ],
)
async def test_ends_that_are_no_answers_end(stage: Stage, reason: FinishReason, status: int, code: str) -> None:
    async with stage() as scene:
        answer = asyncio.create_task(scene.door.chat())
        await (await scene.worker.submit()).send(finish=reason, detail="because")
        assert ((await answer).status, (await answer).error["code"]) == (status, code)


async def test_many_long_prompts_at_once_fit_into_messages(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.mesh.workers.BATCH_BYTES_MAX", 8000)
    async with stage() as scene:
        scene.router.manual = True
        answers = [asyncio.create_task(scene.door.chat("x" * 1000)) for _ in range(6)]
        asks = [await scene.router.acquires.get() for _ in answers]
        for ask in asks:
            scene.router.grant(ask.request, scene.worker)
        for _ in answers:
            await (await scene.worker.submit()).text("ok")
        assert [(await answer).status for answer in answers] == [200] * 6
