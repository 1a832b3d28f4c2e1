"""The small parts: timers, queue, drain rate, step-time model, the size of a request."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.router.drain_rate import RETRY_AFTER_MAX_S, DrainRate, RetryAfter
from services.router.queue import TenantQueue
from services.router.requests import Request
from services.router.step_model import PRIOR_MS, StepModel
from services.router.timers import Timer, Timers

if TYPE_CHECKING:
    from collections.abc import Iterator


def _request(order: int = 0, *, arrived: float = 0.0, prompt: int = 8, answer: int = 8, choices: int = 1) -> Request:
    request = Request(1, order, "m", prompt, answer, choices, arrived=arrived)
    request.order = order
    return request


@given(st.lists(st.tuples(st.floats(0, 100), st.booleans()), max_size=400))
def test_timers_fire_once_in_order_unless_cancelled(plan: list[tuple[float, bool]]) -> None:
    timers, fired = Timers(), list[float]()
    added: list[tuple[Timer, bool]] = []
    for due, cancel in plan:
        added.append((timers.add(due, lambda now, late: fired.append(now - late)), cancel))
    for timer, cancel in added:
        if cancel:
            timers.cancel(timer)
            timers.cancel(timer)
    assert len(timers) == sum(not cancel for _, cancel in plan)
    for now in (50.0, 100.0):
        timers.run(now)
    assert fired == pytest.approx(sorted(due for due, cancel in plan if not cancel))
    assert (timers.next_due(), len(timers)) == (None, 0)


def test_cancelled_timers_leave_the_heap_long_before_they_are_due() -> None:
    timers = Timers()
    for _ in range(10_000):
        timers.cancel(timers.add(1e9, lambda now, late: None))
    assert len(timers._heap) < 200


def test_a_timer_that_arms_itself_again_fires_once_per_run() -> None:
    timers, fired = Timers(), list[float]()

    def again(now: float, late: float) -> None:
        fired.append(now)
        timers.add(now, again)

    timers.add(1.0, again)
    timers.run(1.0)
    timers.run(1.0)
    assert fired == [1.0, 1.0]


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10), st.booleans()), max_size=60))
def test_a_tenants_queue_stays_in_order_of_deadlines(plan: list[tuple[float, float, bool]]) -> None:
    queue, kept = TenantQueue(), list[Request]()
    for order, (arrived, due, keep) in enumerate(plan):
        request = _request(order, arrived=arrived)
        request.due, request.cost = due, 16.0
        queue.push(request)
        if keep:
            kept.append(request)
        else:
            queue.remove(request)
    kept.sort(key=lambda request: (request.due, request.arrived, request.order))
    assert list(queue) == kept
    assert [queue.ahead(request) for request in kept] == list(range(len(kept)))
    assert queue.cost == 16.0 * len(kept)


@pytest.mark.parametrize(
    ("prompt", "answer", "choices", "blocks"),
    [(0, 0, 1, 0), (1, 0, 1, 1), (16, 0, 1, 1), (16, 1, 1, 2), (15, 1, 3, 3), (32, 16, 3, 2 + 3), (40, 8, 2, 2 + 2)],
)
def test_choices_share_the_full_blocks_of_the_prompt(prompt: int, answer: int, choices: int, blocks: int) -> None:
    assert _request(prompt=prompt, answer=answer, choices=choices).blocks(16) == blocks


def test_the_rate_counts_backlog_only() -> None:
    rate = DrainRate()
    assert rate.per_s(0.0) == (0.0, 0.0)
    rate.backlogged(0.0, True)
    for second in range(1, 21):
        rate.granted(second * 0.5, 100)
    rate.backlogged(10.0, False)
    assert rate.per_s(10.0) == pytest.approx((2.0, 200.0), rel=0.05)
    assert rate.per_s(5000.0) == pytest.approx((2.0, 200.0), rel=0.05), "an idle hour says nothing"
    rate.backlogged(5000.0, True)
    assert rate.per_s(5030.0)[0] < 0.2, "a stalled queue does"


def test_a_first_burst_is_no_rate() -> None:
    rate = DrainRate()
    rate.backlogged(0.0, True)
    for _ in range(4):
        rate.granted(0.001, 10)
    assert rate.per_s(0.001)[0] <= 8.0
    assert not rate.confident(0.001)


def test_promises_expire_with_time() -> None:
    retry = RetryAfter()
    assert [retry.next_place_s(0.0, (10.0, 1000.0), 100, 0) for _ in range(3)] == pytest.approx([0.1, 0.2, 0.3])
    assert retry.next_place_s(0.2, (10.0, 1000.0), 100, 0) == pytest.approx(0.2)
    assert retry.next_place_s(60.0, (10.0, 1000.0), 100, 0) == pytest.approx(0.1)
    assert retry.next_place_s(60.0, (10.0, 1000.0), 100, 5000) == pytest.approx(5.1), "5,000 tokens must leave first"
    assert retry.next_place_s(60.0, (0.0, 0.0), 100, 0) == 0.0
    assert RetryAfter().next_place_s(0.0, (1e-6, 1e-3), 5, 0) == RETRY_AFTER_MAX_S


def _steps(seed: int, count: int, a: float, b: float, c: float) -> Iterator[tuple[float, int, int]]:
    draw = random.Random(seed)
    for _ in range(count):
        prefill = draw.choice([0, 0, 0, draw.randrange(1, 2048)])
        running = draw.randrange(1, 64)
        yield (a + b * prefill + c * running) * draw.uniform(0.95, 1.05), prefill, running


@pytest.mark.parametrize(("a", "b", "c"), [(6.0, 0.125, 0.35), (20.0, 0.5, 1.0), (1.0, 0.01, 0.02), (15.0, 0.0, 0.0)])
def test_the_step_model_finds_the_engine(a: float, b: float, c: float) -> None:
    model = StepModel()
    steps = list(_steps(1, 400, a, b, c))
    for at in range(0, len(steps), 16):
        model.learn(steps[at : at + 16])
    for prefill, running in ((0, 8), (1024, 8), (2048, 60)):
        assert model.predict_ms(prefill, running) == pytest.approx(a + b * prefill + c * running, rel=0.1)


def test_decoding_for_hours_does_not_unlearn_prefill() -> None:
    model = StepModel()
    steps = list(_steps(2, 400, 5.0, 0.5, 0.1))
    for at in range(0, 400, 16):
        model.learn(steps[at : at + 16])
    learned = model.b
    for _ in range(20_000):
        model.learn([(5.0 + 0.1 * 8, 0, 8)])
    assert model.b == pytest.approx(learned, rel=0.05)
    assert model.b == pytest.approx(0.5, rel=0.1)


def test_one_long_pause_does_not_spoil_the_model() -> None:
    model = StepModel()
    for at in range(20):
        model.learn(list(_steps(at, 16, 6.0, 0.125, 0.35)))
    before = model.predict_ms(0, 8)
    model.learn([(30_000.0, 0, 8)])
    assert model.predict_ms(0, 8) < 1.5 * before


@given(
    st.lists(
        st.tuples(st.floats(allow_nan=True, allow_infinity=True), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1)),
        max_size=40,
    )
)
def test_no_samples_make_an_absurd_model(steps: list[tuple[float, int, int]]) -> None:
    model = StepModel()
    model.learn(steps)
    assert model.a >= 0.01
    assert model.b >= 0.0
    assert model.c >= 0.0
    assert math.isfinite(model.predict_ms(1000, 100))
    if not model.samples:
        assert (model.a, model.b, model.c) == PRIOR_MS
