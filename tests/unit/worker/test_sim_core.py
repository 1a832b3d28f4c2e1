"""The simulator keeps its promises whatever comes, in whatever order."""

from __future__ import annotations

import functools
import operator
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common import blocks
from services.common.frames import FinishReason
from services.worker.engine import sim_tokens
from services.worker.engine.sim_core import KV_BLOCK, SimCore, SimModel
from tests.unit.worker.make import request

VOCABULARY = np.arange(10, 1_000, dtype=np.uint32)


@dataclass
class Run:
    """What came out of a core."""

    core: SimCore
    tokens: dict[int, list[int]] = field(default_factory=dict)
    finishes: dict[int, FinishReason] = field(default_factory=dict)
    cached: dict[int, int] = field(default_factory=dict)
    seconds: float = 0.0
    largest_batch: int = 0

    def step(self) -> None:
        """One step, with every check that holds for each."""
        out = self.core.step()
        assert out.cost is not None
        self.seconds += out.cost.step_ms / 1e3
        assert out.counts == [1] * len(out.ids)
        assert len(set(out.ids)) == len(out.ids)
        self.largest_batch = max(self.largest_batch, len(out.ids))
        for id_, token in zip(out.ids, out.tokens, strict=True):
            assert id_ not in self.finishes
            self.tokens.setdefault(id_, []).append(token)
        for id_, hit in out.cached:
            assert id_ not in self.cached
            self.cached[id_] = hit
        for finish in out.finishes:
            assert finish.id not in self.finishes
            self.finishes[finish.id] = finish.reason
        assert self.core.pool.used <= self.core.pool.capacity
        assert self.core.pool.free >= 0

    def to_end(self, steps_max: int = 20_000) -> Run:
        """Until nothing is left."""
        for _ in range(steps_max):
            if not self.core.busy:
                return self
            self.step()
        raise AssertionError("the core doesn't come to an end")


def core(**fields: float) -> SimCore:
    return SimCore(SimModel(**fields), VOCABULARY)  # type: ignore[arg-type]


prompts = st.lists(st.integers(0, 3), min_size=1, max_size=60)
arrivals = st.lists(
    st.tuples(prompts, st.integers(1, 60), st.integers(-2, 2), st.integers(0, 5)), min_size=1, max_size=12
)


@settings(max_examples=150, deadline=None)
@given(arrivals, st.sampled_from([8, 12, 40]), st.integers(1, 6), st.integers(16, 64), st.data())
def test_every_request_ends_once_within_capacity(
    wanted: list[tuple[list[int], int, int, int]], blocks: int, max_running: int, budget: int, data: st.DataObject
) -> None:
    """Tiny caches force evictions and preemptions; some requests are aborted on the way."""
    run = Run(core(kv_tokens=blocks * KV_BLOCK, max_running=max_running, max_batched_tokens=budget))
    aborted = set()
    for id_, (prompt, max_tokens, priority, pause) in enumerate(wanted):
        run.core.submit(request(id_, prompt, max_tokens=max_tokens, priority=priority, ignore_eos=True))
        for _ in range(pause):
            if run.core.busy:
                run.step()
        assert run.largest_batch <= max_running
        if data.draw(st.booleans(), label="abort one"):
            victim = data.draw(st.integers(0, id_), label="victim")
            if victim not in run.finishes:
                aborted.add(victim)
            run.core.abort([victim])
    run.to_end()
    assert set(run.finishes) == set(range(len(wanted))) - aborted
    for id_ in run.finishes:
        assert len(run.tokens[id_]) == wanted[id_][1]
        assert run.finishes[id_] is FinishReason.LENGTH
    assert run.core.pool.free == run.core.pool.capacity


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 999), min_size=1, max_size=40), st.integers(0, 2**40), st.integers(0, 3), st.data())
def test_tokens_depend_on_nothing_but_prompt_seed_choice_and_index(
    prompt: list[int], seed: int, choice: int, data: st.DataObject
) -> None:
    """Alone, in a crowd that preempts it, or moved to another core at any point: the same answer."""
    alone = Run(core())
    alone.core.submit(request(1, prompt, seed=seed, choice=choice, max_tokens=300))
    whole = alone.to_end().tokens[1]

    crowd = Run(core(kv_tokens=30 * KV_BLOCK, max_running=4, max_batched_tokens=32))
    for other in range(2, 6):
        crowd.core.submit(request(other, [other] * 20, max_tokens=50, ignore_eos=True, priority=-1))
    crowd.core.submit(request(1, prompt, seed=seed, choice=choice, max_tokens=300))
    assert crowd.to_end().tokens[1] == whole

    cut = data.draw(st.integers(0, len(whole) - 1), label="cut")
    moved = Run(core())
    tokens = prompt + whole[:cut]
    moved.core.submit(request(1, tokens, produced=cut, seed=seed, choice=choice, max_tokens=300 - cut))
    moved.to_end()
    assert whole[:cut] + moved.tokens[1] == whole
    assert moved.finishes[1] is alone.finishes[1] is FinishReason.STOP


def test_answers_differ_by_prompt_seed_and_choice() -> None:
    run = Run(core())
    run.core.submit(request(1, [1, 2], max_tokens=16))
    run.core.submit(request(2, [1, 3], max_tokens=16))
    run.core.submit(request(3, [1, 2], max_tokens=16, seed=7))
    run.core.submit(request(4, [1, 2], max_tokens=16, choice=1))
    run.core.submit(request(5, [1, 2], max_tokens=16))
    run.to_end()
    assert run.tokens[1] == run.tokens[5]
    assert len({tuple(run.tokens[id_]) for id_ in (1, 2, 3, 4)}) == 4
    assert set(functools.reduce(operator.iadd, run.tokens.values(), [])) <= set(VOCABULARY.tolist())


@given(st.integers(0, 2**64 - 1), st.integers(0, 5_000), st.integers(1, 600))
def test_tokens_can_be_computed_from_any_index(key: int, first: int, count: int) -> None:
    whole = sim_tokens.answer_tokens(key, 0, first + count, VOCABULARY)
    assert sim_tokens.answer_tokens(key, first, count, VOCABULARY) == whole[first:]


def test_natural_end_min_tokens_and_stop_tokens() -> None:
    natural = Run(core())
    natural.core.submit(request(1, [5], max_tokens=1_000))
    answer = natural.to_end().tokens[1]
    assert 16 <= len(answer) <= 256
    assert natural.finishes[1] is FinishReason.STOP

    run = Run(core())
    run.core.submit(request(1, [5], max_tokens=1_000, min_tokens=500))
    run.core.submit(request(2, [5], max_tokens=10))
    run.core.submit(request(3, [5], max_tokens=1_000, stop_token_ids=[answer[3]]))
    run.core.submit(request(4, [5], max_tokens=1_000, stop_token_ids=[answer[3]], min_tokens=len(answer)))
    run.to_end()
    assert len(run.tokens[1]) == 500
    assert (len(run.tokens[2]), run.finishes[2]) == (10, FinishReason.LENGTH)
    assert run.tokens[3] == answer[: answer.index(answer[3]) + 1]
    assert run.finishes[3] is FinishReason.STOP
    assert run.tokens[4][: len(answer)] == answer


def test_prefix_cache_hits_whole_blocks_and_respects_the_salt() -> None:
    prompt = list(range(50))
    run = Run(core())
    run.core.submit(request(1, prompt, max_tokens=30, ignore_eos=True))
    run.to_end()
    run.core.submit(request(2, prompt, max_tokens=1))
    run.core.submit(request(3, prompt, max_tokens=1, salt="other tenant"))
    run.core.submit(request(4, prompt + run.tokens[1][:20], max_tokens=1))
    run.core.submit(request(5, prompt[:48], max_tokens=1))
    run.to_end()
    assert run.cached == {1: 0, 2: 48, 3: 0, 4: 64, 5: 32}


def test_idle_blocks_are_evicted_longest_unused_first() -> None:
    run = Run(core(kv_tokens=8 * KV_BLOCK))
    first, second, third = ([start] * 49 for start in (1, 2, 3))
    for id_, prompt in enumerate((first, second, third)):
        run.core.submit(request(id_, prompt, max_tokens=1))
        run.to_end()
    run.core.submit(request(10, third, max_tokens=1))
    run.to_end()
    run.core.submit(request(11, first, max_tokens=1))
    run.to_end()
    assert run.cached[10] == 48
    assert run.cached[11] == 16  # two blocks were needed: the end of the oldest chain went, its start is still of use


def test_urgent_requests_start_first() -> None:
    run = Run(core(max_running=1))
    run.core.submit(request(1, [1], max_tokens=2, ignore_eos=True))
    run.step()
    run.core.submit(request(2, [1], max_tokens=2, ignore_eos=True, priority=5))
    run.core.submit(request(3, [1], max_tokens=2, ignore_eos=True, priority=1))
    run.core.submit(request(4, [1], max_tokens=2, ignore_eos=True, priority=1))
    run.to_end()
    assert list(run.finishes) == [1, 3, 4, 2]


def test_step_time_follows_the_cost_model() -> None:
    run = Run(core())
    run.core.submit(request(1, list(range(800)), max_tokens=3, ignore_eos=True))
    run.to_end()
    assert run.seconds == pytest.approx(0.006 + 800 / 8_000 + 2 * (0.006 + 0.00035))
    fixed = Run(core(step_ms=20))
    fixed.core.submit(request(1, list(range(800)), max_tokens=3, ignore_eos=True))
    fixed.to_end()
    assert fixed.seconds == pytest.approx(0.060)


def test_long_prompts_are_prefilled_in_chunks_beside_decoding() -> None:
    run = Run(core(max_batched_tokens=256))
    run.core.submit(request(1, [1], max_tokens=30, ignore_eos=True))
    run.step()
    run.core.submit(request(2, list(range(900)), max_tokens=1))
    assert run.core.load().queued_prefill_tokens == 900
    run.step()
    assert (len(run.tokens[1]), 2 in run.tokens) == (2, False)
    assert run.core.load().queued_prefill_tokens == 900 - 255
    run.to_end()
    assert len(run.tokens[2]) == 1


def test_logprobs_are_pure_and_ordered() -> None:
    one, two = Run(core()), Run(core())
    for run in (one, two):
        run.core.submit(request(1, [1, 2], max_tokens=5, logprobs=3))
    first, second = one.core.step(), two.core.step()
    assert first.logprobs == second.logprobs
    ((position, own, top),) = first.logprobs
    assert (position, len(top), top[0]) == (0, 3, (first.tokens[0], own))
    assert [value for _, value in top] == sorted((value for _, value in top), reverse=True)
    assert own <= 0


def test_load_counts_what_runs_and_waits() -> None:
    run = Run(core(max_running=2))
    for id_ in range(3):
        run.core.submit(request(id_, [id_] * 40, max_tokens=5, ignore_eos=True))
    assert (run.core.load().running, run.core.load().waiting, run.core.load().queued_prefill_tokens) == (0, 3, 120)
    run.step()
    load = run.core.load()
    assert (load.running, load.waiting, load.queued_prefill_tokens) == (2, 1, 40)
    assert load.free_kv_blocks == run.core.pool.capacity - 2 * 3


@settings(max_examples=150, deadline=None)
@given(arrivals, st.sampled_from([8, 12, 40]), st.lists(st.sampled_from(["", "x"]), min_size=12, max_size=12))
def test_block_changes_predict_every_cache_hit(
    wanted: list[tuple[list[int], int, int, int]], kv_blocks: int, salts: list[str]
) -> None:
    """One after the other: what the changes said before is what a sequence then finds, under the gateways' names."""
    run = Run(SimCore(SimModel(kv_tokens=kv_blocks * KV_BLOCK), VOCABULARY, "v"))
    held: set[bytes] = set()
    for id_, ((tokens, max_tokens, _, _), salt) in enumerate(zip(wanted, salts, strict=False)):
        names = blocks.split(blocks.chain(blocks.root("v", "", salt), tokens))[: (len(tokens) - 1) // KV_BLOCK]
        predicted = next((at for at, name in enumerate(names) if name not in held), len(names)) * KV_BLOCK
        run.core.submit(request(id_, tokens, salt=salt, max_tokens=max_tokens))
        run.to_end()
        assert run.cached[id_] == predicted
        change = run.core.pool.changes.take()
        assert not held & set(change.stored)
        assert held >= set(change.removed)
        held = (held | set(change.stored)) - set(change.removed)
        assert len(held) <= kv_blocks
