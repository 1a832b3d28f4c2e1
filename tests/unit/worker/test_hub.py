"""The hub: one finish per handle, one frame per step per gateway, one engine call per batch of aborts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.common.frames import FinishReason, StepFrame, decode_frame
from services.worker.engine.base import EngineLoad, EngineStep, Finish, KvChange, StepCost
from services.worker.engine.sim_core import SimCore, SimModel
from services.worker.hub import Gateway, Hub
from services.worker.submits import Limits
from tests.unit.worker.make import sampling, submit

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from services.worker.engine.base import EngineInfo, EngineRequest

COST = StepCost(1.0, 0, 1)
LIMITS = Limits(vocab_size=1_000, context_length=1_000, max_logprobs=20, capabilities=("logprobs",), loras=())


class Recorder:
    """An engine that only writes down."""

    def __init__(self) -> None:
        self.submitted: list[EngineRequest] = []
        self.aborts: list[list[int]] = []

    async def start(self) -> EngineInfo:
        raise NotImplementedError

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        self.submitted.extend(requests)

    def abort(self, ids: Sequence[int]) -> None:
        self.aborts.append(list(ids))

    def steps(self) -> AsyncGenerator[EngineStep, None]:
        raise NotImplementedError

    def kv_events(self) -> AsyncGenerator[KvChange, None]:
        raise NotImplementedError

    def load(self) -> EngineLoad:
        return EngineLoad(0, 0, 0, 0)

    async def stop(self) -> None:
        raise NotImplementedError


@dataclass
class Listener:
    started: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    turns: int = 0

    def lease_started(self, lease: int) -> None:
        self.started.append(lease)

    def lease_ended(self, lease: int) -> None:
        self.ended.append(lease)

    def stepped(self, cost: StepCost | None) -> None:
        pass

    def turned(self) -> None:
        self.turns += 1


class Frames:
    """A sink that reads what it gets."""

    def __init__(self) -> None:
        self.all: list[StepFrame] = []

    def put(self, frame: bytes) -> None:
        self.all.append(decode_frame(frame))

    def take(self) -> StepFrame:
        """The only frame since the last time."""
        (frame,) = self.all
        self.all.clear()
        return frame


@dataclass
class FakeTimer:
    delay_s: float
    call: Callable[[], None]
    cancelled: bool = False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """A hub and everything around it."""

    def __init__(self, max_sequences: int = 8) -> None:
        self.engine, self.listener = Recorder(), Listener()
        self.timers: list[FakeTimer] = []
        self.hub = Hub(self.engine, LIMITS, 77, max_sequences, self._call_later, self.listener)
        self.frames = Frames()
        self.gateway = Gateway(self.frames)

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(delay_s, call))
        return self.timers[-1]

    def finish(self, frame: StepFrame) -> dict[int, tuple[FinishReason, int, int, int]]:
        """handle -> reason, prompt, cached, completion tokens."""
        rows = zip(
            frame.finish_reason,
            frame.finish_prompt_tokens,
            frame.finish_cached_tokens,
            frame.finish_completion_tokens,
            strict=True,
        )
        return {
            handle: (FinishReason(reason), prompt, cached, completion)
            for handle, (reason, prompt, cached, completion) in zip(frame.finish_sequence, rows, strict=True)
        }


@pytest.fixture
def world() -> World:
    return World()


async def test_a_step_is_one_frame_for_each_gateway(world: World) -> None:
    other_frames = Frames()
    other = Gateway(other_frames)
    world.hub.receive(world.gateway, [submit(1), submit(2)], [])
    world.hub.receive(other, [submit(1)], [])
    assert [request.id for request in world.engine.submitted] == [1, 2, 3]
    world.hub.deliver(EngineStep(ids=[1, 3, 2], counts=[1, 2, 1], tokens=[10, 30, 31, 20], cached=[(1, 2)], cost=COST))
    frame = world.frames.take()
    assert (frame.incarnation, frame.step) == (77, 1)
    assert (frame.sequence, frame.first_index, frame.count, frame.tokens) == ([1, 2], [0, 0], [1, 1], [10, 20])
    frame = other_frames.take()
    assert (frame.sequence, frame.first_index, frame.count, frame.tokens) == ([1], [0], [2], [30, 31])
    world.hub.deliver(EngineStep(ids=[3], counts=[1], tokens=[32], finishes=[Finish(3, FinishReason.STOP)], cost=COST))
    frame = other_frames.take()
    assert (frame.step, frame.first_index, frame.tokens) == (2, [2], [32])
    assert world.finish(frame) == {1: (FinishReason.STOP, 3, 0, 3)}
    assert world.frames.all == []
    world.hub.deliver(EngineStep(finishes=[Finish(1, FinishReason.LENGTH)], cost=COST))
    assert world.finish(world.frames.take()) == {1: (FinishReason.LENGTH, 3, 2, 1)}


async def test_choices_share_a_prompt_and_a_lease(world: World) -> None:
    world.hub.receive(world.gateway, [submit(5, choices=3, first_choice=2, lease=9)], [])
    assert [(request.id, request.choice) for request in world.engine.submitted] == [(1, 2), (2, 3), (3, 4)]
    for id_ in (2, 1):
        world.hub.deliver(EngineStep(finishes=[Finish(id_, FinishReason.STOP)], cost=COST))
    assert (world.listener.started, world.listener.ended, world.hub.leases) == ([9], [], [9])
    world.hub.deliver(EngineStep(finishes=[Finish(3, FinishReason.STOP)], cost=COST))
    assert (world.listener.ended, world.hub.leases) == ([9], [])
    assert [handle for frame in world.frames.all for handle in frame.finish_sequence] == [6, 5, 7]


async def test_logprobs_point_at_the_gateways_own_tokens(world: World) -> None:
    other_frames = Frames()
    other = Gateway(other_frames)
    world.hub.receive(world.gateway, [submit(1)], [])
    world.hub.receive(other, [submit(1), submit(2)], [])
    world.hub.deliver(
        EngineStep(
            ids=[1, 2, 3],
            counts=[2, 1, 2],
            tokens=[10, 11, 20, 30, 31],
            logprobs=[(0, -0.5, [(10, -0.5)]), (1, -1.0, []), (4, -2.0, [(31, -2.0), (9, -3.0)])],
            cost=COST,
        )
    )
    frame = world.frames.take()
    assert (frame.tokens, frame.logprob_token, frame.logprob, frame.top_count) == (
        [10, 11],
        [0, 1],
        [-0.5, -1.0],
        [1, 0],
    )
    frame = other_frames.take()
    assert (frame.tokens, frame.logprob_token, frame.top_tokens) == ([20, 30, 31], [2], [31, 9])


async def test_over_the_cap_is_refused_at_once_and_whole(world: World) -> None:
    world.hub.receive(world.gateway, [submit(1, choices=7), submit(10, choices=2), submit(20)], [])
    frame = world.frames.take()
    assert world.finish(frame) == dict.fromkeys((10, 11), (FinishReason.REFUSED, 0, 0, 0))
    assert "8 sequences" in frame.finish_detail[0]
    assert len(world.hub) == 8
    assert len(world.engine.submitted) == 8
    world.hub.receive(world.gateway, [], [1])
    world.hub.receive(world.gateway, [submit(30)], [])
    assert len(world.hub) == 8


async def test_a_draining_worker_refuses_and_finishes_what_it_has(world: World) -> None:
    world.hub.receive(world.gateway, [submit(1)], [])
    world.hub.drain()
    world.hub.receive(world.gateway, [submit(2)], [])
    frame = world.frames.take()
    assert world.finish(frame) == {2: (FinishReason.REFUSED, 0, 0, 0)}
    assert "draining" in frame.finish_detail[0]
    world.hub.deliver(EngineStep(finishes=[Finish(1, FinishReason.STOP)], cost=COST))
    await world.hub.idle()


async def test_aborts_are_one_engine_call_and_carry_usage(world: World) -> None:
    world.hub.receive(world.gateway, [submit(1), submit(2, [4, 5], prompt_tokens=1, first_index=1), submit(3)], [])
    world.hub.deliver(EngineStep(ids=[1, 2], counts=[1, 2], tokens=[10, 20, 21], cached=[(1, 16)], cost=COST))
    world.frames.all.clear()
    world.hub.receive(world.gateway, [], [1, 2, 2, 99])
    assert [sorted(set(ids)) for ids in world.engine.aborts] == [[1, 2]]
    assert world.finish(world.frames.take()) == {
        1: (FinishReason.ABORTED, 3, 3, 1),  # more cached tokens than the prompt has can't be billed
        2: (FinishReason.ABORTED, 1, 0, 3),
    }
    world.hub.deliver(
        EngineStep(ids=[1, 3], counts=[1, 1], tokens=[11, 30], finishes=[Finish(2, FinishReason.STOP)], cost=COST)
    )
    assert world.frames.take().sequence == [3]
    world.hub.receive(world.gateway, [], [1])
    assert (world.frames.all, len(world.engine.aborts)) == ([], 1)


async def test_a_submit_and_its_abort_in_one_batch(world: World) -> None:
    world.hub.receive(world.gateway, [submit(1)], [1])
    assert world.engine.aborts == [[1]]
    assert world.finish(world.frames.take()) == {1: (FinishReason.ABORTED, 3, 0, 0)}


async def test_a_gateway_that_leaves_takes_its_sequences_along(world: World) -> None:
    other_frames = Frames()
    other = Gateway(other_frames)
    world.hub.receive(world.gateway, [submit(handle, lease=handle) for handle in (1, 2, 3)], [])
    world.hub.receive(other, [submit(1)], [])
    world.hub.close(world.gateway)
    world.hub.close(world.gateway)
    assert world.engine.aborts == [[1, 2, 3]]
    assert world.listener.ended == [1, 2, 3]
    assert (len(world.hub), world.frames.all, other_frames.all) == (1, [], [])


async def test_a_deadline_ends_the_sequence_and_only_once(world: World) -> None:
    world.hub.receive(world.gateway, [submit(1, deadline_ms=1_500), submit(2, deadline_ms=10)], [])
    assert [timer.delay_s for timer in world.timers] == [1.5, 0.01]
    world.timers[0].call()
    assert world.engine.aborts == [[1]]
    assert world.finish(world.frames.take()) == {1: (FinishReason.DEADLINE, 3, 0, 0)}
    world.hub.deliver(EngineStep(finishes=[Finish(2, FinishReason.STOP)], cost=COST))
    assert world.timers[1].cancelled
    world.timers[1].call()
    assert len(world.engine.aborts) == 1


async def test_a_bad_submit_does_not_harm_its_neighbours(world: World) -> None:
    world.hub.receive(world.gateway, [submit(1), submit(2, sampling=sampling(max_tokens=0)), submit(3)], [])
    frame = world.frames.take()
    assert world.finish(frame) == {2: (FinishReason.INVALID, 0, 0, 0)}
    assert frame.finish_detail[0].startswith("sampling.max_tokens:")
    assert [request.id for request in world.engine.submitted] == [1, 2]


async def test_a_reused_handle_is_invalid_and_ends_the_live_one(world: World) -> None:
    world.hub.receive(world.gateway, [submit(1, lease=4)], [])
    world.hub.receive(world.gateway, [submit(1, attempt=2, lease=5)], [])
    frame = world.frames.take()
    assert world.finish(frame) == {1: (FinishReason.INVALID, 0, 0, 0)}
    assert frame.finish_detail[0].startswith("sequence:")
    assert (world.engine.aborts, len(world.hub), world.listener.ended) == ([[1]], 0, [4])
    world.hub.receive(world.gateway, [submit(1)], [])
    assert world.frames.take().finish_reason == [FinishReason.INVALID]


async def test_idle_and_busy_are_told_once_per_turn(world: World) -> None:
    world.hub.receive(world.gateway, [submit(1), submit(2)], [])
    assert world.listener.turns == 1
    world.hub.receive(world.gateway, [], [1])
    assert world.listener.turns == 1
    world.hub.receive(world.gateway, [], [2])
    assert world.listener.turns == 2


class HubMachine(RuleBasedStateMachine):
    """Any order of submits, aborts, steps, deadlines and leaving gateways over a real simulator core."""

    def __init__(self) -> None:
        super().__init__()
        self.core = SimCore(SimModel(max_running=4, kv_tokens=640), np.arange(1_000, dtype=np.uint32))
        self.listener = Listener()
        self.timers: list[FakeTimer] = []
        self.hub = Hub(self, LIMITS, 1, 6, self._call_later, self.listener)  # type: ignore[arg-type]
        self.sinks = [Frames(), Frames()]
        self.gateways = [Gateway(sink) for sink in self.sinks]
        self.opened: list[Counter[int]] = [Counter(), Counter()]
        self.next_handle = 0

    def _call_later(self, delay_s: float, call: Callable[[], None]) -> FakeTimer:
        self.timers.append(FakeTimer(delay_s, call))
        return self.timers[-1]

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        for request in requests:
            self.core.submit(request)

    def abort(self, ids: Sequence[int]) -> None:
        self.core.abort(ids)

    @rule(who=st.integers(0, 1), choices=st.integers(1, 3), max_tokens=st.integers(1, 20), deadline=st.booleans())
    def submit_one(self, who: int, choices: int, max_tokens: int, deadline: bool) -> None:
        wanted = submit(
            self.next_handle,
            list(range(20)),
            choices=choices,
            lease=self.next_handle + 1,
            deadline_ms=100 * deadline,
            sampling=sampling(max_tokens=max_tokens),
        )
        for handle in range(self.next_handle, self.next_handle + choices):
            self.opened[who][handle] += 1
        self.next_handle += choices
        self.hub.receive(self.gateways[who], [wanted], [])

    @rule(who=st.integers(0, 1), back=st.integers(0, 10))
    def abort_one(self, who: int, back: int) -> None:
        self.hub.receive(self.gateways[who], [], [max(0, self.next_handle - back)])

    @precondition(lambda self: self.core.busy)
    @rule()
    def step(self) -> None:
        before = [len(sink.all) for sink in self.sinks]
        self.hub.deliver(self.core.step())
        assert all(len(sink.all) - n <= 1 for sink, n in zip(self.sinks, before, strict=True))

    @rule(which=st.integers(0, 100))
    def expire(self, which: int) -> None:
        if self.timers:
            self.timers[which % len(self.timers)].call()

    @rule(who=st.integers(0, 1))
    def leave(self, who: int) -> None:
        self.hub.close(self.gateways[who])
        self.sinks[who] = Frames()
        self.gateways[who] = Gateway(self.sinks[who])
        self.opened[who] = Counter()

    @invariant()
    def bounded_and_consistent(self) -> None:
        load = self.core.load()
        assert load.running + load.waiting == len(self.hub) <= 6
        assert sorted(self.hub.leases) == sorted((Counter(self.listener.started) - Counter(self.listener.ended)).keys())

    def teardown(self) -> None:
        while self.core.busy:
            self.hub.deliver(self.core.step())
        assert len(self.hub) == 0
        for sink, opened in zip(self.sinks, self.opened, strict=True):
            assert Counter(handle for frame in sink.all for handle in frame.finish_sequence) == opened
            self._check_indexes(sink)

    def _check_indexes(self, sink: Frames) -> None:
        expected: Counter[int] = Counter()
        for frame in sink.all:
            for handle, first, count in zip(frame.sequence, frame.first_index, frame.count, strict=True):
                assert first == expected[handle]
                expected[handle] += count
            for handle, completion in zip(frame.finish_sequence, frame.finish_completion_tokens, strict=True):
                assert completion == expected[handle]


TestHubMachine = HubMachine.TestCase
TestHubMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
