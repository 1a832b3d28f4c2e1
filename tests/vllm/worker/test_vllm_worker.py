"""Real vLLM behind Attach: what comes out, what is refused, and what ends with what."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer

from services.common.card import ModelCard
from services.common.frames import FinishReason
from services.worker.guardian import shared_memory
from tests.integration.worker.harness import Attached, Ended, attached, fetch_card, group_members, submit

if TYPE_CHECKING:
    from tests.vllm.worker.conftest import VllmWorker

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(300)]

TEXTS = ("What is Penstock?", "Tell me a story about a fox.", "What is 2 + 3?", "Hello! Who are you?")
NEAR = 1e-3
"""Two log probabilities closer than this may come out either way round (DESIGN 4)."""
GREEDY = {"max_tokens": 48, "ignore_eos": True, "logprobs": 2}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file("models/nano/tokenizer.json")


def chat(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n").ids
    return ids


async def answers(worker: VllmWorker, prompts: list[list[int]], **fields: Any) -> Attached:
    """Greedy answers to `prompts`, all at once, under the handles 0, 1, ..."""
    async with attached(worker.address, worker.incarnation) as gateway:
        await gateway.send(*[submit(i, prompt, sampling=GREEDY, **fields) for i, prompt in enumerate(prompts)])
        await gateway.until_ended(*range(len(prompts)))
    return gateway


def margins(gateway: Attached, handle: int) -> list[float]:
    """How far the best log probability was from the second, per token of `handle`."""
    found = []
    for frame in gateway.frames:
        owners = [owner for owner, count in zip(frame.sequence, frame.count, strict=True) for _ in range(count)]
        at = 0
        for position, count in zip(frame.logprob_token, frame.top_count, strict=True):
            top = frame.top_logprobs[at : at + count]
            at += count
            if owners[position] == handle:
                found.append(top[0] - top[1])
    return found


def assert_same(one: Attached, other: Attached, handles: range) -> None:
    """Token for token, except from where the first was undecided."""
    for handle in handles:
        differs = [i for i, (a, b) in enumerate(zip(one.tokens[handle], other.tokens[handle], strict=True)) if a != b]
        if differs:
            assert margins(one, handle)[differs[0]] < NEAR


async def one(worker: VllmWorker, tokens: list[int], **fields: Any) -> tuple[list[int], Ended]:
    """One answer on a stream of its own."""
    async with attached(worker.address, worker.incarnation) as gateway:
        return await gateway.run(submit(1, tokens, **fields))


@pytest.fixture(scope="module")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    return [chat(tokenizer, text) for text in TEXTS]


async def test_sixteen_streams_share_their_steps(plain: VllmWorker, prompts: list[list[int]]) -> None:
    sixteen = prompts * 4
    gateway = await answers(plain, sixteen)
    for handle in range(16):
        assert len(gateway.tokens[handle]) == 48
        assert gateway.tokens[handle] == gateway.tokens[handle % 4]
        ended = gateway.ended[handle]
        assert (ended.reason, ended.prompt, ended.completion) == (FinishReason.LENGTH, len(sixteen[handle]), 48)
    steps = [frame.step for frame in gateway.frames]
    assert steps == sorted(set(steps))
    assert len(steps) <= 48 + 8  # one frame per step, not per sequence; a few steps for the prompts
    assert max(len(frame.sequence) for frame in gateway.frames) == 16


async def test_tp2_and_killing_it(plain: VllmWorker, two: VllmWorker, prompts: list[list[int]]) -> None:
    """Two processes say what one says; when the worker is killed, no engine process survives."""
    assert_same(await answers(plain, prompts), await answers(two, prompts), range(4))
    assert len(group_members(two.pid)) >= 5  # worker, sentinel, engine core, two ranks
    memory = shared_memory(two.pid)
    assert memory
    os.kill(two.pid, signal.SIGKILL)
    assert two.guardian.wait(30) == 128 + signal.SIGKILL
    assert group_members(two.pid) == []
    assert not [path for path in memory if path.exists()]


async def test_speculation_and_a_dead_engine_core(
    plain: VllmWorker, speculating: VllmWorker, prompts: list[list[int]]
) -> None:
    """Several tokens per step are the same tokens; a dead engine core ends the worker with an error."""
    repeating = [*prompts, prompts[0] + [300, 301, 302, 303] * 20]
    gateway = await answers(speculating, repeating)
    assert_same(await answers(plain, repeating), gateway, range(5))
    assert max(max(frame.count, default=0) for frame in gateway.frames) > 1
    async with attached(speculating.address, speculating.incarnation) as live:
        await live.send(submit(1, prompts[0], sampling={"max_tokens": 4_000}))
        await live.next()
        others = set(group_members(speculating.pid)) - {speculating.pid}
        (core,) = (pid for pid in others if "EngineCore" in _title(pid))
        os.kill(core, signal.SIGKILL)
        with pytest.raises(EOFError):
            while True:
                await live.next()
    assert speculating.guardian.wait(30) == 70
    assert group_members(speculating.pid) == []


def _title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")


async def test_a_second_run_is_cached_and_the_same(plain: VllmWorker, prompts: list[list[int]]) -> None:
    long = [(prompts[0] + prompts[1]) * 12]
    first, second = await answers(plain, long, cache_salt="s"), await answers(plain, long, cache_salt="s")
    assert_same(first, second, range(1))
    assert first.ended[0].cached == 0
    assert second.ended[0].cached >= 128
    assert (await answers(plain, long, cache_salt="another tenant")).ended[0].cached == 0


async def test_a_moved_greedy_stream_goes_on_with_the_same_tokens(plain: VllmWorker, prompts: list[list[int]]) -> None:
    whole = (await answers(plain, prompts[:1])).tokens[0]
    async with attached(plain.address, plain.incarnation) as gateway:
        moved = submit(1, prompts[0] + whole[:20], prompt_tokens=len(prompts[0]), first_index=20, attempt=2,
                       sampling={"max_tokens": 28, "ignore_eos": True})  # fmt: skip
        await gateway.send(moved)
        rest: list[int] = []
        frame = await gateway.read()
        assert frame.first_index[0] == 20
        while not frame.finish_sequence:
            rest += frame.tokens
            frame = await gateway.read()
        rest += frame.tokens
    assert frame.finish_completion_tokens == [48]
    assert whole[:20] + rest == whole


async def test_an_abort_frees_the_sequence(plain: VllmWorker, prompts: list[list[int]]) -> None:
    endless = {"max_tokens": 4_000, "ignore_eos": True}
    async with attached(plain.address, plain.incarnation) as gateway:
        await gateway.send(*[submit(handle, prompts[0], sampling=endless) for handle in range(24)])
        while len(gateway.tokens) < 24:
            await gateway.next()
        _, ended = await gateway.run(submit(100, prompts[0]))
        assert ended.reason is FinishReason.REFUSED
        await gateway.send(aborts=list(range(24)))
        await gateway.until_ended(*range(24))
        for handle in range(24):
            ended = gateway.ended[handle]
            assert ended.reason is FinishReason.ABORTED
            assert ended.completion == len(gateway.tokens[handle])
        assert (await gateway.run(submit(101, prompts[0])))[1].reason is FinishReason.LENGTH


async def test_a_deadline_and_a_leaving_gateway(plain: VllmWorker, prompts: list[list[int]]) -> None:
    endless = {"max_tokens": 4_000, "ignore_eos": True}
    async with attached(plain.address, plain.incarnation) as gateway:
        _, ended = await gateway.run(submit(1, prompts[0], deadline_ms=200, sampling=endless))
        assert ended.reason is FinishReason.DEADLINE
        await gateway.send(*[submit(handle, prompts[0], sampling=endless) for handle in range(2, 26)])
        await gateway.next()
    async with attached(plain.address, plain.incarnation) as gateway:
        handle = 0
        ended = (await gateway.run(submit(handle, prompts[0])))[1]
        while ended.reason is FinishReason.REFUSED:  # until the worker has seen the other one leave
            handle += 1
            ended = (await gateway.run(submit(handle, prompts[0])))[1]
        assert ended.reason is FinishReason.LENGTH


async def test_the_natural_end_is_a_stop(plain: VllmWorker, prompts: list[list[int]]) -> None:
    tokens, ended = await one(plain, prompts[3], sampling={"max_tokens": 400, "ignore_eos": False})
    assert ended.reason is FinishReason.STOP
    assert tokens[-1] in {0, 2}
    stop, ended = await one(plain, prompts[3], sampling={"max_tokens": 400, "stop_token_ids": [tokens[3]]})
    assert stop == tokens[: tokens.index(tokens[3]) + 1]
    assert ended.reason is FinishReason.STOP
    longer, _ = await one(
        plain, prompts[3], sampling={"max_tokens": 400, "min_tokens": len(tokens) + 5, "ignore_eos": False}
    )
    assert len(longer) >= len(tokens) + 5


async def test_seeds_choices_and_bias(plain: VllmWorker, prompts: list[list[int]]) -> None:
    hot = {"max_tokens": 24, "temperature": 1.5, "seed": 11}
    async with attached(plain.address, plain.incarnation) as gateway:
        await gateway.send(submit(10, prompts[1], choices=3, sampling=hot))
        await gateway.until_ended(10, 11, 12)
        again, _ = await gateway.run(submit(20, prompts[1], first_choice=1, sampling=hot))
    assert len({tuple(gateway.tokens[handle]) for handle in (10, 11, 12)}) == 3
    assert again == gateway.tokens[11]
    biased, _ = await one(plain, prompts[1], sampling={"max_tokens": 6, "logit_bias": {77: 100.0}})
    assert biased == [77] * 6
    varied, _ = await one(
        plain, prompts[1], sampling={"max_tokens": 6, "logit_bias": {77: 100.0}, "frequency_penalty": 2.0,
                                     "presence_penalty": 2.0, "repetition_penalty": 1.1}
    )  # fmt: skip
    assert len(varied) == 6


async def test_logprobs_are_sorted_and_hold_the_greedy_token(plain: VllmWorker, prompts: list[list[int]]) -> None:
    async with attached(plain.address, plain.incarnation) as gateway:
        await gateway.send(submit(1, prompts[0], sampling={"max_tokens": 5, "logprobs": 3}))
        await gateway.until_ended(1)
        await gateway.run(submit(2, prompts[0], sampling={"max_tokens": 5, "logprobs": 0}))
    for frame in gateway.frames:
        if frame.sequence == [1]:
            assert (frame.logprob_token, frame.top_count) == ([0], [3])
            assert frame.top_logprobs == sorted(frame.top_logprobs, reverse=True)
            assert (frame.top_tokens[0], frame.top_logprobs[0]) == (frame.tokens[0], frame.logprob[0])
        elif frame.sequence == [2]:
            assert (frame.logprob_token, frame.top_count) == ([0], [0])


async def test_structured_output_is_json(plain: VllmWorker, prompts: list[list[int]], tokenizer: Tokenizer) -> None:
    schema = {
        "type": "object",
        "properties": {"sunny": {"type": "boolean"}, "place": {"enum": ["here", "there"]}},
        "required": ["sunny", "place"],
        "additionalProperties": False,
    }
    wanted = {"max_tokens": 200, "json_schema": json.dumps(schema), "ignore_eos": False}
    tokens, ended = await one(plain, prompts[0], sampling=wanted)
    assert ended.reason is FinishReason.STOP
    value = json.loads(tokenizer.decode(tokens))
    assert isinstance(value["sunny"], bool)
    assert value["place"] in {"here", "there"}
    tokens, _ = await one(plain, prompts[0], sampling={"max_tokens": 8, "json_object": True, "ignore_eos": False})
    assert tokenizer.decode(tokens).lstrip().startswith("{")


async def test_an_adapter_answers_otherwise(plain: VllmWorker, prompts: list[list[int]]) -> None:
    base, poet = await answers(plain, prompts), await answers(plain, prompts, lora="poet")
    again = await answers(plain, prompts, lora="poet")
    assert all(base.tokens[handle] != poet.tokens[handle] for handle in range(4))
    assert poet.tokens == again.tokens
    card = ModelCard.parse(await fetch_card(plain.address, plain.card_hash), plain.card_hash)
    assert (card.meta.model, card.meta.lora, card.meta.engine) == ("nano", ("poet",), "vllm")
    assert {"structured_output", "lora", "logprobs"} <= set(card.meta.capabilities)


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 1.5}, "top_p"),
        ({"top_k": -5}, "top_k"),
        ({"min_p": 2.0}, "min_p"),
        ({"presence_penalty": 9.0}, "presence_penalty"),
        ({"repetition_penalty": -1.0}, "repetition_penalty"),
        ({"json_schema": "{not json"}, "json"),
        ({"json_schema": '{"type": "strange"}'}, "sampling"),
    ],
)
async def test_what_vllm_refuses_is_invalid_with_its_words(
    plain: VllmWorker, prompts: list[list[int]], sampling: dict[str, Any], named: str
) -> None:
    async with attached(plain.address, plain.incarnation) as gateway:
        await gateway.send(submit(1, prompts[0], sampling=sampling), submit(2, prompts[0]))
        await gateway.until_ended(1, 2)
    assert gateway.ended[1].reason is FinishReason.INVALID
    assert named.lower() in gateway.ended[1].detail.lower()
    assert gateway.ended[1].detail
    assert gateway.ended[2].reason is FinishReason.LENGTH


@pytest.mark.parametrize("field", [{"presence_penalty": 0.5}, {"json_object": True}])
async def test_what_cannot_move_says_so(plain: VllmWorker, prompts: list[list[int]], field: dict[str, Any]) -> None:
    wanted = submit(1, prompts[0], prompt_tokens=len(prompts[0]) - 2, first_index=2, sampling=field)
    async with attached(plain.address, plain.incarnation) as gateway:
        await gateway.send(wanted)
        frame = await gateway.read()
    assert frame.finish_reason == [FinishReason.INVALID]
    assert next(iter(field)) in frame.finish_detail[0]
