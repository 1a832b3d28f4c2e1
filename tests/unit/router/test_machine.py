"""Hypothesis drives the scheduler through any order of arrivals, ends, deaths and clock turns."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from services.router.config import SchedulerConfig
from services.router.events import Event, Granted, ModelChanged, Preempt, Queued, Rejected, WorkerDropped
from services.router.requests import LeaseState, Request, Usage
from services.router.scheduler import Scheduler
from services.router.search import next_fit
from services.router.workers import Registration, Report
from tests.unit.router.books import Engine, Grant, Key, check_bands
from tests.unit.router.world import registration

GATEWAYS = st.integers(1, 3)


class SchedulerMachine(RuleBasedStateMachine):
    """Every request is in exactly one of `waiting`, `granted` and `ended`; events may only move it forward."""

    @initialize(
        queue=st.integers(0, 12),
        passes=st.integers(0, 3),
        look_ahead=st.integers(1, 4),
        floors=st.sampled_from([(0.5, 0.2, 0.05), (0.0, 0.0, 0.0), (0.3, 0.3, 0.4)]),
    )
    def start(self, queue: int, passes: int, look_ahead: int, floors: tuple[float, ...]) -> None:
        self.now = 100.0
        self.config = SchedulerConfig(
            models=("m",), queue_requests_max=queue, queue_tokens_max=800, passes_max=passes, look_ahead=look_ahead,
            floors=floors, preempts_max=2,
        )  # fmt: skip
        self.asked: set[int] = set()
        self.stale = False
        self.scheduler = Scheduler(self.config, incarnation=77, now=self.now)
        self.waiting: dict[Key, Request] = {}
        self.granted: dict[int, Grant] = {}
        self.ended: set[Key] = set()
        self.returned: set[Key] = set()
        self.last: dict[str, tuple[Registration, Engine]] = {}
        self.requests: dict[Key, Request] = {}
        self.engines: dict[int, Engine] = {}
        self.numbers = 0
        self.draining = False
        for incarnation in (1, 2):
            self.engines[incarnation] = Engine(2, 60)
            info = registration(incarnation, max_sequences=2, kv_blocks=60)
            self.take(self.scheduler.worker_registered(self.now, info))

    def take(self, events: list[Event]) -> None:
        """Apply events to the test's own books, checking that each is allowed."""
        self._check_floors([event for event in events if isinstance(event, Granted)])
        for event in events:
            if isinstance(event, Granted):
                self._take_grant(event)
            elif isinstance(event, Rejected):
                self.waiting.pop((event.gateway, event.request))
                self.ended.add((event.gateway, event.request))
                assert event.retry_after_s >= 0.0
                assert event.detail
            elif isinstance(event, Queued):
                assert (event.gateway, event.request) in self.waiting
                assert 1 <= event.position <= len(self.waiting)
            elif isinstance(event, WorkerDropped):
                self._lose(event.incarnation)
            elif isinstance(event, Preempt):
                self._take_preempt(event)
            else:
                assert isinstance(event, ModelChanged)

    def _take_grant(self, event: Granted) -> None:
        request = self.waiting.pop((event.gateway, event.request))
        assert event.incarnation not in request.excluded
        assert not self.draining
        worker = self.scheduler.workers()[event.incarnation]
        assert event.lease not in self.granted
        blocks = request.blocks(worker.block_size)
        self.granted[event.lease] = Grant((event.gateway, event.request), event.incarnation, request.choices, blocks)

    def _check_floors(self, grants: list[Granted]) -> None:
        """What a class took above its floor was not kept for a class above it."""
        requests = [self.requests[event.gateway, event.request] for event in grants]
        if len({(request.model, request.band) for request in requests}) != 1:
            return
        pool, band = self.scheduler._fleet.pools[requests[0].model], requests[0].band
        free = sum(max(worker.free_sequences, 0) for worker in pool.eligible.values())
        assert pool.queue.lacks(band) >= 0 or free >= pool.queue.kept_from(self.now, band)

    def _take_preempt(self, event: Preempt) -> None:
        """A lower class is asked, once per lease, and never too many at a time."""
        assert event.lease in self.granted
        assert event.lease not in self.asked
        self.asked.add(event.lease)
        victim = self.requests[self.granted[event.lease].key]
        assert any(request.band < victim.band for request in self.waiting.values() if request.model == victim.model)
        asked = self.scheduler._fleet.pools[victim.model].queue.asked
        assert len(asked) <= self.config.preempts_max

    def _lose(self, incarnation: int) -> None:
        self.engines.pop(incarnation, None)
        for grant in self.granted.values():
            if grant.incarnation == incarnation:
                grant.lost = True

    def _end(self, lease: int) -> Grant:
        grant = self.granted.pop(lease)
        self.ended.add(grant.key)
        return grant

    @rule(
        gateway=GATEWAYS,
        model=st.sampled_from(["m", "m", "m", "m", "lora", "nobody"]),
        prompt=st.integers(0, 60),
        answer=st.integers(0, 30),
        choices=st.sampled_from([1, 1, 2, 3]),
        deadline=st.sampled_from([math.inf] * 6 + [0.0, 0.5, 5.0]),
        waited=st.sampled_from([0.0, 0.0, 3.0]),
        exclude=st.sampled_from([False, False, False, True]),
        priority_class=st.sampled_from([1, 1, 2, 3, 3]),
        tenant=st.sampled_from(["", "a", "b", "c"]),
    )
    def acquire(self, gateway: int, exclude: bool, deadline: float, waited: float, **size: Any) -> None:
        self.numbers += 1
        request = Request(
            gateway=gateway,
            number=self.numbers,
            model=size["model"],
            prompt_tokens=size["prompt"],
            max_tokens=size["answer"],
            choices=size["choices"],
            arrived=self.now - waited,
            deadline=self.now + deadline,
            excluded=frozenset(list(self.engines)[:1]) if exclude else frozenset(),
            priority_class=size["priority_class"],
            tenant=size["tenant"],
            tenant_weight={"a": 2.0, "b": 0.0}.get(size["tenant"], 1.0),
        )
        key = (gateway, self.numbers)
        self.waiting[key] = self.requests[key] = request
        self.take(self.scheduler.acquire(self.now, request))

    @rule(
        worker=st.integers(1, 4),
        restart=st.sampled_from([False, False, False, True]),
        max_sequences=st.integers(1, 6),
        kv_blocks=st.integers(6, 40),
        block_size=st.sampled_from([8, 16]),
        models=st.sampled_from([("m",), ("m",), ("m", "lora"), ("lora",)]),
        card_hash=st.sampled_from(["old", "old", "old", "new"]),
    )
    def register(self, worker: int, restart: bool, **fields: Any) -> None:
        """A start (new incarnation) or a broken stream that is dialled again (same incarnation, same leases)."""
        name = f"worker-{worker}"
        self.numbers += 1
        if restart or name not in self.last:
            incarnation = self.numbers * 10 + worker
            info = registration(incarnation, worker_id=name, **fields)
            engine = Engine(info.max_sequences, info.kv_blocks)
        else:
            info, engine = self.last[name]
            report, running = engine.report(), frozenset(engine.running)
            info = registration(**{**_fields(info), "report": report, "leases": running})
        held = {lease: grant for lease, grant in self.granted.items() if grant.incarnation == info.incarnation}
        events = self.scheduler.worker_registered(self.now, info)
        fresh = set(self.granted)
        self.take(events)
        self.engines[info.incarnation] = engine
        self.last[name] = (info, engine)
        for lease, grant in held.items():
            counted = self.scheduler.workers()[info.incarnation].leases
            grant.lost = lease in fresh and lease not in counted
            assert lease not in info.leases or not grant.lost, "a lease that still runs was lost"

    @precondition(lambda self: self.engines)
    @rule(data=st.data(), foreign=st.sampled_from([0, 0, 0, 2]), draining=st.sampled_from([False] * 5 + [True]))
    def report(self, data: st.DataObject, foreign: int, draining: bool) -> None:
        """The engine starts what was granted, ends some, and says so."""
        incarnation = data.draw(st.sampled_from(sorted(self.engines)))
        engine = self.engines[incarnation]
        for lease, grant in self.granted.items():
            if (
                grant.incarnation == incarnation
                and not grant.over
                and lease not in engine.running
                and data.draw(st.booleans())
            ):
                engine.running[lease] = grant.choices
                engine.started.append(lease)
        for lease in list(engine.running):
            if lease not in self.granted or data.draw(st.integers(0, 2)) == 0:
                del engine.running[lease]
                engine.ended.append(lease)
                if lease in self.granted:
                    self.granted[lease].over = True
        engine.foreign = foreign
        report = engine.report()
        if draining:
            report = Report(**{**_fields(report), "draining": True})
        self.take(self.scheduler.worker_reported(self.now, incarnation, report))

    @precondition(lambda self: self.engines)
    @rule(data=st.data())
    def kill_worker(self, data: st.DataObject) -> None:
        incarnation = data.draw(st.sampled_from(sorted(self.engines)))
        self._lose(incarnation)
        self.take(self.scheduler.worker_gone(self.now, incarnation))

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), late=st.booleans(), tokens=st.none() | st.integers(1, 60), cached=st.integers(0, 80))
    def release(self, data: st.DataObject, late: bool, tokens: int | None, cached: int) -> None:
        lease = data.draw(st.sampled_from(sorted(self.granted)))
        grant = self._end(lease)
        usage = Usage(tokens, cached) if tokens is not None else None
        self.take(self.scheduler.release(self.now, grant.key[0], lease, usage))
        if late:
            assert self.scheduler.release(self.now, grant.key[0], lease) == []

    @precondition(lambda self: self.granted)
    @rule(data=st.data(), bounced=st.sampled_from([True, True, False]))
    def give_back(self, data: st.DataObject, bounced: bool) -> None:
        """Bounced or yielded: the same request waits again, or is rejected."""
        lease = data.draw(st.sampled_from(sorted(self.granted)))
        grant = self.granted.pop(lease)
        self.waiting[grant.key] = self.requests[grant.key]
        self.returned.add(grant.key)
        call = self.scheduler.bounced if bounced else self.scheduler.yielded
        self.take(call(self.now, grant.key[0], lease))

    @precondition(lambda self: self.asked & self.granted.keys())
    @rule(data=st.data(), yields=st.booleans())
    def answer_preempt(self, data: st.DataObject, yields: bool) -> None:
        lease = data.draw(st.sampled_from(sorted(self.asked & self.granted.keys())))
        gateway = self.granted[lease].key[0]
        if not yields:
            self.take(self.scheduler.refused(self.now, gateway, lease))
            return
        grant = self.granted.pop(lease)
        self.waiting[grant.key] = self.requests[grant.key]
        self.returned.add(grant.key)
        self.take(self.scheduler.yielded(self.now, gateway, lease))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.waiting)))
        del self.waiting[key]
        self.ended.add(key)
        self.take(self.scheduler.withdraw(self.now, *key))

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def withdraw_what_was_granted_meanwhile(self, data: st.DataObject) -> None:
        lease = data.draw(st.sampled_from(sorted(self.granted)))
        grant = self._end(lease)
        self.take(self.scheduler.withdraw(self.now, *grant.key))

    @rule(gateway=GATEWAYS)
    def kill_gateway(self, gateway: int) -> None:
        for key in [key for key in self.waiting if key[0] == gateway]:
            del self.waiting[key]
            self.ended.add(key)
        for lease in [lease for lease, grant in self.granted.items() if grant.key[0] == gateway]:
            self._end(lease)
        events = self.scheduler.gateway_gone(self.now, gateway)
        assert all(getattr(event, "gateway", 0) != gateway for event in events)
        self.take(events)

    @rule(seconds=st.sampled_from([0.1, 0.1, 1.0, 2.5, 11.0, 40.0]), silent=st.sampled_from([False, False, True]))
    def turn_the_clock(self, seconds: float, silent: bool) -> None:
        until = self.now + seconds
        self.stale = silent
        while True:
            due = self.scheduler.next_due()
            self.now = max(self.now, min(until, due if due is not None else until))
            if not silent:
                for incarnation, engine in list(self.engines.items()):
                    self.take(self.scheduler.worker_reported(self.now, incarnation, engine.report()))
            if due is None or due > until:
                break
            self.take(self.scheduler.tick(self.now))
            self._forget_lost()

    def _forget_lost(self) -> None:
        """A lease outlives its worker by `lost_lease_s`; then the scheduler may forget it."""
        for lease in [lease for lease, grant in self.granted.items() if grant.lost]:
            if lease not in self.scheduler._ledger.leases:
                self._end(lease)

    @precondition(lambda self: len(self.ended) > 20)
    @rule()
    def drain(self) -> None:
        self.draining = True
        self.take(self.scheduler.drain(self.now))
        assert not self.waiting

    @invariant()
    def books_agree(self) -> None:
        assert self.scheduler.live_requests == len(self.waiting) + len(self.granted)
        assert self.scheduler.live_leases == len(self.granted)
        assert sum(count for count, _ in self.scheduler.waiting().values()) == len(self.waiting)
        tokens = sum(request.tokens for request in self.waiting.values())
        assert sum(size for _, size in self.scheduler.waiting().values()) == tokens
        assert set(self.scheduler.workers()) == set(self.engines)

    @invariant()
    def no_worker_is_over_capacity(self) -> None:
        for incarnation, worker in self.scheduler.workers().items():
            mine = [g for g in self.granted.values() if g.incarnation == incarnation and not g.over and not g.lost]
            assert sum(grant.choices for grant in mine) <= worker.info.max_sequences
            assert sum(grant.blocks for grant in mine) <= worker.info.kv_blocks

    @invariant()
    def no_counter_is_negative(self) -> None:
        for worker in self.scheduler.workers().values():
            for name in ("_own_sequences", "_own_blocks", "_pending_prefill", "_counted_sequences", "_counted_blocks"):
                assert getattr(worker, name) >= 0, name
            assert worker.base_ms > 0
            assert worker.slope_ms > 0

    @invariant()
    def a_worker_counts_its_leases_and_no_others(self) -> None:
        for incarnation, worker in self.scheduler.workers().items():
            assert set(worker.leases) == {
                lease for lease, g in self.granted.items() if g.incarnation == incarnation and not g.lost
            }
            pending = [lease for lease in worker.leases.values() if lease.state is LeaseState.PENDING]
            running = [lease for lease in worker.leases.values() if lease.state is LeaseState.RUNNING]
            released = [each for each in worker._released.values() if each.counted]
            assert worker._pending_prefill == sum(lease.prefill_tokens for lease in pending)
            assert worker._own_sequences == sum(lease.sequences for lease in pending + running)
            assert worker._own_blocks == sum(lease.blocks for lease in pending + running)
            counted = sum(lease.sequences for lease in running) + sum(each.sequences for each in released)
            assert worker._counted_sequences == counted

    @invariant()
    def nobody_waits_in_front_of_a_free_worker(self) -> None:
        for pool in self.scheduler._fleet.pools.values():
            for worker in pool.eligible.values():
                assert (worker.incarnation in pool.open) == worker.has_room
            if not self.stale:
                assert next_fit(pool, self.config, self.now) is None

    @invariant()
    def classes_and_tenants_count_what_they_hold(self) -> None:
        for name, pool in self.scheduler._fleet.pools.items():
            assert set(pool.queue.asked) <= self.asked & self.granted.keys()
            waiting = [request for request in self.waiting.values() if request.model == name]
            granted = [(self.requests[grant.key], grant.lost) for grant in self.granted.values()]
            check_bands(pool.queue, self.now, waiting, [each for each in granted if each[0].model == name])

    @invariant()
    def queues_are_bounded(self) -> None:
        """What comes back from a worker was admitted before, and stands beside the bound."""
        new = Counter(
            (request.model, request.band) for key, request in self.waiting.items() if key not in self.returned
        )
        assert all(count <= self.config.queue_requests_max for count in new.values())

    def teardown(self) -> None:
        """Everything ends; then nothing is left of it."""
        if not hasattr(self, "scheduler"):
            return
        for gateway in (1, 2, 3):
            self.kill_gateway(gateway)
        for incarnation in list(self.engines):
            self._lose(incarnation)
            self.take(self.scheduler.worker_gone(self.now, incarnation))
        self.turn_the_clock(60.0, silent=True)
        scheduler = self.scheduler
        assert (scheduler.live_requests, scheduler.live_leases, scheduler.waiting()) == (0, 0, {})
        assert scheduler.next_due() is None
        assert not scheduler._lost
        assert not scheduler._ledger._requests
        for pool in scheduler._fleet.pools.values():
            assert pool.queue.held == [0, 0, 0]
            assert not pool.queue.asked
            for lane in pool.queue.lanes:
                assert all(account.parked for account in lane.accounts._by_tenant.values())
        assert len(scheduler._timers) == 0
        assert self.ended == set(self.requests)


def _fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__slots__}


TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(max_examples=150, stateful_step_count=50, deadline=None)
