"""When a report is due, and that it tells each change once."""

from __future__ import annotations

import asyncio

from services.worker.engine.base import EngineLoad, StepCost
from services.worker.registration import HEARTBEAT_S, REPORT_S, SAMPLES_MAX, Link, Registrar

LOAD = EngineLoad(1, 2, 3, 4)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_steps_are_reported_but_not_more_often_than_the_period() -> None:
    clock = Clock()
    link = Link(clock)
    link.report(LOAD, False)
    clock.now += REPORT_S / 2
    link.stepped()
    assert not link.is_due
    clock.now += REPORT_S
    assert not link.is_due  # no step, no report before the heartbeat
    link.stepped()
    assert link.is_due
    link.report(LOAD, False)
    assert not link.is_due


def test_a_turn_is_reported_at_once() -> None:
    registrar = Registrar((), Clock())
    link = registrar.open_link()
    link.report(LOAD, False)
    registrar.stepped(None)
    assert not link.is_due
    registrar.turned()
    assert link.is_due


async def test_the_heartbeat_needs_no_step() -> None:
    clock = Clock()
    link = Link(clock)
    clock.now += HEARTBEAT_S
    async with asyncio.timeout(5):
        await link.due()


def test_a_report_tells_each_change_once() -> None:
    registrar = Registrar((), Clock())
    link = registrar.open_link()
    registrar.lease_started(7)
    registrar.lease_started(8)
    registrar.lease_ended(7)
    for number in range(SAMPLES_MAX + 4):
        registrar.stepped(StepCost(float(number), number, 1))
    registrar.stepped(None)
    first, second = link.report(LOAD, False), link.report(LOAD, True)
    assert (list(first.leases_started), list(first.leases_ended)) == ([7, 8], [7])
    assert [sample.prefill_tokens for sample in first.steps] == list(range(4, SAMPLES_MAX + 4))
    assert (first.sequence, first.running, first.waiting, first.free_kv_blocks) == (1, 1, 2, 3)
    assert (first.queued_prefill_tokens, first.draining) == (4, False)
    assert (second.sequence, second.draining) == (2, True)
    assert not second.leases_started
    assert not second.leases_ended
    assert not second.steps
