"""Order, placement and load, peers that come and go."""

from __future__ import annotations

import math

from services.router.events import Granted, ModelChanged, Queued, Rejected, WorkerDropped
from services.router.workers import Report
from tests.unit.router.world import World, of, only, registration


def test_equal_workers_take_turns() -> None:
    world = World(*(registration(n, max_sequences=100) for n in (1, 2, 3)))
    chosen = []
    for _ in range(6):
        granted = only(Granted, world.acquire())
        chosen.append(granted.incarnation)
        world.release(granted.lease)
    assert chosen == [1, 2, 3, 1, 2, 3]


def test_the_emptier_worker_is_preferred() -> None:
    world = World(registration(1, max_sequences=100), registration(2, max_sequences=100))
    world.report(1, running=60, queued_prefill_tokens=4000)
    assert {only(Granted, world.acquire()).incarnation for _ in range(20)} == {2}


def test_load_is_raised_at_the_grant_before_any_report() -> None:
    world = World(
        *(registration(n, max_sequences=8, kv_blocks=10_000, context_length=9000) for n in (1, 2, 3, 4)),
        backlog_ms_max=math.inf,
    )
    chosen = [only(Granted, world.acquire(prompt_tokens=4000)).incarnation for _ in range(16)]
    assert sorted(chosen) == sorted([1, 2, 3, 4] * 4)


def test_the_faster_worker_gets_more_of_a_burst() -> None:
    steps = [(2.0 + 0.02 * tokens, tokens, 1) for tokens in (0, 100, 500, 1000, 2000) for _ in range(3)]
    slow = [(20.0 + 0.2 * tokens, tokens, 1) for tokens in (0, 100, 500, 1000, 2000) for _ in range(3)]
    world = World(*(registration(n, max_sequences=100, kv_blocks=10_000) for n in (1, 2)), backlog_ms_max=math.inf)
    for _ in range(8):
        world.report(1, steps=tuple(slow))
        world.report(2, steps=tuple(steps))
    chosen = [only(Granted, world.acquire(prompt_tokens=1000)).incarnation for _ in range(22)]
    assert 18 <= chosen.count(2) <= 21


def test_a_grant_counts_once_when_the_report_lists_it() -> None:
    world = World(registration(max_sequences=4))
    leases = world.fill(3)
    worker = world.scheduler.workers()[1]
    assert worker.free_sequences == 1
    world.report(running=2, free_blocks=998, leases_started=tuple(leases[:2]))
    assert worker.free_sequences == 1
    world.report(running=2, waiting=1, free_blocks=997, leases_started=(leases[2],))
    assert worker.free_sequences == 1
    world.report(running=2, free_blocks=998, leases_ended=(leases[0],))
    assert worker.free_sequences == 2
    world.release(leases[0])
    assert worker.free_sequences == 2, "its end was reported before the release came"


def test_a_release_counts_at_once_though_the_last_report_still_lists_the_lease() -> None:
    world = World(registration(max_sequences=2))
    leases = world.fill(2)
    world.report(running=2, free_blocks=998, leases_started=tuple(leases))
    only(Queued, world.acquire())
    lease = only(Granted, world.release(leases[0])).lease
    world.report(running=2, free_blocks=998, leases_started=(lease,), leases_ended=(leases[0],))
    assert world.scheduler.workers()[1].free_sequences == 0


def test_a_lease_that_comes_and_goes_between_two_reports_leaves_nothing() -> None:
    world = World(registration(max_sequences=2))
    lease = world.fill(1)[0]
    world.release(lease)
    world.report(running=1, free_blocks=999, leases_started=(lease,))
    assert world.scheduler.workers()[1].free_sequences == 2, "the report is older than the release"
    world.report(leases_ended=(lease,))
    assert world.scheduler.workers()[1].free_sequences == 2


def test_a_release_without_a_reported_end_is_believed_for_a_second() -> None:
    world = World(registration(max_sequences=1))
    lease = world.fill(1)[0]
    world.report(running=1, leases_started=(lease,))
    world.release(lease)
    assert world.scheduler.workers()[1].free_sequences == 1
    world.now += 1.1
    world.report(running=1)
    assert world.scheduler.workers()[1].free_sequences == 0, "the worker insists"


def test_foreign_load_counts() -> None:
    world = World(registration(max_sequences=4))
    world.report(running=3, free_blocks=1)
    assert only(Granted, world.acquire()).incarnation == 1
    only(Queued, world.acquire())


def test_choices_count_as_sequences_and_share_the_prompt() -> None:
    world = World(registration(max_sequences=8, kv_blocks=100))
    world.fill(1, choices=4, prompt_tokens=160, max_tokens=32)
    worker = world.scheduler.workers()[1]
    assert (worker.free_sequences, worker.free_blocks) == (4, 100 - 10 - 4 * 2)


def test_excluded_workers_are_not_used() -> None:
    world = World(registration(1), registration(2))
    assert {only(Granted, world.acquire(excluded=frozenset({1}))).incarnation for _ in range(2)} == {2}
    only(Queued, world.acquire(excluded=frozenset({1})))
    assert only(Granted, world.acquire()).incarnation == 1, "the excluding request blocks nobody"


def test_first_come_first_served() -> None:
    world = World(registration(max_sequences=1))
    lease = world.fill(1)[0]
    for _ in range(3):
        world.acquire()
    order = []
    for _ in range(3):
        granted = only(Granted, world.release(lease))
        order.append(granted.request)
        lease = granted.lease
    assert order == [2, 3, 4]


def test_who_has_waited_elsewhere_keeps_its_place() -> None:
    world = World(registration(max_sequences=1))
    lease = world.fill(1)[0]
    world.acquire()
    world.wait(1.0)
    assert only(Queued, world.acquire(waited=5.0)).position == 1
    assert only(Granted, world.release(lease)).request == 3


def test_a_bounced_lease_goes_back_to_its_old_place() -> None:
    world = World(registration(max_sequences=2))
    leases = world.fill(2)
    world.acquire()
    events = world.scheduler.bounced(world.now, 1, leases[1])
    assert (only(Queued, events).request, only(Queued, events).position) == (2, 1)
    assert [event.request for event in of(Granted, world.report(running=1, leases_started=(leases[0],)))] == [2]


def test_a_yielded_lease_goes_back_to_its_old_place_without_counting_as_bounced() -> None:
    world = World(registration(max_sequences=1))
    lease = world.fill(1)[0]
    world.acquire()
    for _ in range(5):
        granted = only(Granted, world.scheduler.yielded(world.now, 1, lease))
        assert granted.request == 1
        lease = granted.lease


def test_small_requests_pass_a_large_one_so_often_and_no_more() -> None:
    world = World(registration(max_sequences=100, kv_blocks=20), passes_max=3, patience=0.0)
    first = world.fill(1, prompt_tokens=160)[0]
    large = only(Queued, world.acquire(prompt_tokens=280)).request
    small = [world.acquire() for _ in range(5)]
    assert [len(of(Granted, events)) for events in small] == [1, 1, 1, 0, 0]
    assert of(Granted, world.release(first)) == [], "17 blocks are free, held for the 18 of the large one"
    assert only(Granted, world.release(only(Granted, small[0]).lease)).request == large


def test_any_number_that_excludes_the_only_free_worker_blocks_nobody() -> None:
    world = World(registration(1, max_sequences=1), registration(2, max_sequences=1), look_ahead=4, passes_max=0)
    first = only(Granted, world.acquire(excluded=frozenset({2})))
    for _ in range(20):
        only(Queued, world.acquire(excluded=frozenset({2})))
    assert only(Granted, world.acquire()).incarnation == 2
    assert only(Granted, world.release(first.lease)).request == 2


def test_workers_are_held_only_where_the_held_for_may_go() -> None:
    world = World(
        registration(1, max_sequences=9, kv_blocks=20),
        registration(2, max_sequences=9, kv_blocks=20),
        passes_max=0,
        patience=0.0,
    )
    world.fill(2, prompt_tokens=160)
    only(Queued, world.acquire(prompt_tokens=280, excluded=frozenset({2})))
    assert [only(Granted, world.acquire()).incarnation for _ in range(3)] == [2, 2, 2]


def test_an_equal_request_may_go_where_the_one_before_it_must_not() -> None:
    world = World(registration(1, max_sequences=9, kv_blocks=20), registration(2, max_sequences=9, kv_blocks=20))
    assert only(Granted, world.acquire(prompt_tokens=160)).incarnation == 1
    only(Queued, world.acquire(prompt_tokens=280, excluded=frozenset({2})))
    assert only(Granted, world.acquire(prompt_tokens=280)).incarnation == 2


def test_a_request_that_comes_back_is_told_its_place_again() -> None:
    world = World(registration(max_sequences=1))
    first = world.fill(1)[0]
    only(Queued, world.acquire())
    granted = only(Granted, world.release(first))
    queued = only(Queued, world.scheduler.bounced(world.now, 1, granted.lease))
    assert (queued.request, queued.position) == (granted.request, 1)


def test_positions_are_said_when_they_have_halved() -> None:
    world = World(registration(max_sequences=1))
    lease = world.fill(1)[0]
    for _ in range(8):
        world.acquire()
    said: list[int] = []
    for _ in range(8):
        lease = only(Granted, world.release(lease)).lease
        said.extend(event.position for event in of(Queued, world.wait(1.1)) if event.request == 9)
    assert said == [4, 2, 1]


def test_a_silent_worker_is_out_and_its_load_forgotten() -> None:
    world = World(registration(), worker_timeout_s=2.0)
    world.fill(1)
    assert world.wait(1.9, heartbeats=False) == []
    events = world.wait(0.2, heartbeats=False)
    assert only(WorkerDropped, events).incarnation == 1
    assert only(ModelChanged, events).model == "m"
    assert world.scheduler.model("m").workers == ()  # type: ignore[union-attr]
    assert world.scheduler.worker_reported(world.now, 1, Report(free_blocks=9)) == []


def test_a_stalled_router_does_not_blame_its_workers() -> None:
    world = World(registration(), worker_timeout_s=2.0)
    world.now += 60.0
    assert of(WorkerDropped, world.scheduler.tick(world.now)) == []
    world.report()
    assert of(WorkerDropped, world.wait(1.0)) == []
    assert of(WorkerDropped, world.wait(5.0, heartbeats=False)) != []


def test_a_new_start_of_a_worker_replaces_the_old_one() -> None:
    world = World(registration(1, worker_id="w"))
    lease = world.fill(1)[0]
    events = world.scheduler.worker_registered(world.now, registration(2, worker_id="w"))
    assert only(WorkerDropped, events).incarnation == 1
    assert list(world.scheduler.workers()) == [2]
    assert world.scheduler.workers()[2].free_sequences == 2
    assert world.release(lease) == []
    assert world.scheduler.live_requests == 0


def test_a_bounce_after_the_workers_death_still_finds_its_request() -> None:
    world = World(registration(1), registration(2))
    granted = only(Granted, world.acquire())
    world.scheduler.worker_gone(world.now, granted.incarnation)
    again = only(Granted, world.scheduler.bounced(world.now, 1, granted.lease))
    assert (again.request, again.incarnation) == (granted.request, 2)


def test_a_lost_lease_is_forgotten_in_the_end() -> None:
    world = World(registration(1), lost_lease_s=30.0)
    world.fill(1)
    world.scheduler.worker_gone(world.now, 1)
    world.wait(29.0)
    assert world.scheduler.live_requests == 1
    world.wait(2.0)
    assert (world.scheduler.live_requests, world.scheduler.live_leases) == (0, 0)


def test_leases_survive_a_broken_stream_of_a_living_worker() -> None:
    world = World(registration(max_sequences=2))
    running, fresh = world.fill(2)
    world.report(running=1, free_blocks=999, leases_started=(running,))
    world.scheduler.worker_gone(world.now, 1)
    report = Report(running=1, free_blocks=999)
    info = registration(max_sequences=2, report=report, leases=frozenset({running}))
    world.scheduler.worker_registered(world.now, info)
    assert world.scheduler.workers()[1].free_sequences == 0
    world.release(fresh)
    assert world.scheduler.workers()[1].free_sequences == 1


def test_a_gateway_that_goes_releases_all_it_holds_and_waits_for() -> None:
    world = World(registration(max_sequences=2))
    world.fill(2, gateway=1)
    world.acquire(gateway=1)
    world.acquire(gateway=2)
    world.acquire(gateway=2)
    events = world.scheduler.gateway_gone(world.now, 1)
    assert [(event.gateway, event.request) for event in of(Granted, events)] == [(2, 4), (2, 5)]
    assert world.scheduler.live_requests == 2


def test_a_lease_belongs_to_its_gateway() -> None:
    world = World(registration(max_sequences=1))
    lease = world.fill(1, gateway=1)[0]
    world.acquire(gateway=2)
    assert world.release(lease, gateway=2) == []
    assert world.scheduler.bounced(world.now, 2, lease) == []
    assert world.scheduler.live_leases == 1


def test_withdrawing_frees_the_way_for_those_behind() -> None:
    world = World(registration(max_sequences=100, kv_blocks=20), passes_max=0, patience=0.0)
    world.fill(1, prompt_tokens=160)
    large = only(Queued, world.acquire(prompt_tokens=280)).request
    only(Queued, world.acquire())
    assert only(Granted, world.scheduler.withdraw(world.now, 1, large)).request == 3


def test_a_withdrawal_that_crosses_the_grant_releases_it() -> None:
    world = World(registration(max_sequences=1))
    world.fill(1)
    world.scheduler.withdraw(world.now, 1, 1)
    assert world.scheduler.live_requests == 0
    only(Granted, world.acquire())


def test_a_draining_worker_keeps_its_leases_and_gets_no_more() -> None:
    world = World(registration(1), registration(2))
    leases = [only(Granted, world.acquire()) for _ in range(2)]
    events = world.report(1, draining=True)
    assert only(ModelChanged, events).model == "m"
    assert {only(Granted, world.acquire()).incarnation for _ in range(1)} == {2}
    assert world.scheduler.live_leases == 3
    assert {lease.incarnation for lease in leases} == {1, 2}


def test_adapters_are_models_of_their_own_on_shared_workers() -> None:
    world = World(registration(max_sequences=1, models=("m", "m-lora")))
    lease = world.fill(1, model="m-lora")[0]
    assert [view.model for view in world.scheduler.models()] == ["m", "m-lora"]
    world.acquire(model="m-lora")
    world.acquire(model="m")
    world.acquire(model="m-lora")
    order = []
    for _ in range(3):
        granted = only(Granted, world.release(lease))
        order.append(granted.request)
        lease = granted.lease
    assert order == [2, 3, 4], "the oldest over all models of the worker"


def test_the_card_of_most_workers_serves() -> None:
    world = World(registration(1, card_hash="a"), registration(2, card_hash="a"))
    events = world.scheduler.worker_registered(world.now, registration(3, card_hash="b"))
    assert of(ModelChanged, events) == []
    assert {only(Granted, world.acquire()).incarnation for _ in range(4)} == {1, 2}
    world.acquire()
    assert of(ModelChanged, world.scheduler.worker_registered(world.now, registration(4, card_hash="b"))) != []
    view = world.scheduler.model("m")
    assert view is not None
    assert (view.card_hash, view.workers) == ("b", ("host:3", "host:4"))


def test_a_new_card_is_told_before_the_grants_that_follow_from_it() -> None:
    world = World(registration(1, card_hash="a", max_sequences=1))
    world.fill(1)
    world.acquire()
    events = world.scheduler.worker_registered(world.now, registration(2, card_hash="b"))
    assert isinstance(events[0], ModelChanged)
    assert events[0].card_changed
    assert only(Granted, events).incarnation == 2


def test_every_router_elects_the_same_card_whatever_it_heard_first() -> None:
    workers = [registration(1, card_hash="a"), registration(2, card_hash="b")]
    elected = set()
    for order in (workers, workers[::-1]):
        view = World(*order).scheduler.model("m")
        assert view is not None
        elected.add(view.card_hash)
    assert elected == {"b"}


def test_a_draining_card_gives_way() -> None:
    world = World(registration(1, card_hash="a"), registration(2, card_hash="a"))
    world.scheduler.worker_registered(world.now, registration(3, card_hash="b"))
    assert only(ModelChanged, world.report(1, draining=True)).card_changed
    assert only(Granted, world.acquire()).incarnation == 3
    assert of(Rejected, world.wait(1.0)) == []
