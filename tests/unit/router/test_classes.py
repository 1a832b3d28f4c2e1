"""Classes, tenants, deadlines and preemption, one rule at a time."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from services.router.events import Granted, Preempt, Queued, Rejected
from services.router.requests import Usage
from services.router.settings import RouterSettings
from services.router.workers import Report
from tests.unit.router.world import World, of, only, reason, registration

INTERACTIVE, STANDARD, BATCH = 1, 2, 3
NO_FLOORS = (0.0, 0.0, 0.0)


def drained(world: World, lease: int, count: int) -> list[int]:
    """Requests in the order in which one slot serves them."""
    order = []
    for _ in range(count):
        granted = only(Granted, world.release(lease))
        order.append(granted.request)
        lease = granted.lease
    return order


def test_a_higher_class_goes_first_whenever_it_came() -> None:
    world = World(registration(max_sequences=1), preempts_max=0)
    lease = world.fill(1)[0]
    for each in (BATCH, STANDARD, INTERACTIVE, BATCH, INTERACTIVE):
        world.acquire(priority_class=each)
    assert drained(world, lease, 5) == [4, 6, 3, 2, 5]


def test_positions_count_the_classes_above() -> None:
    world = World(registration(max_sequences=1), preempts_max=0)
    world.fill(1)
    classes = (BATCH, INTERACTIVE, STANDARD, BATCH)
    assert [only(Queued, world.acquire(priority_class=each)).position for each in classes] == [1, 1, 2, 4]


def test_a_full_class_leaves_the_others_their_places() -> None:
    world = World(registration(max_sequences=1), queue_requests_max=2, preempts_max=0)
    world.fill(1)
    for _ in range(2):
        only(Queued, world.acquire(priority_class=BATCH))
    assert reason(world.acquire(priority_class=BATCH)) == "QUEUE_FULL"
    only(Queued, world.acquire(priority_class=INTERACTIVE))


def test_retry_after_is_that_of_the_class() -> None:
    world = World(registration(max_sequences=1), queue_requests_max=1, preempts_max=0, floors=NO_FLOORS)
    lease = world.fill(1)[0]
    world.acquire(priority_class=BATCH)
    for _ in range(30):
        world.acquire(priority_class=INTERACTIVE)
        world.wait(0.5)
        lease = only(Granted, world.release(lease)).lease
    world.acquire(priority_class=INTERACTIVE)
    assert only(Rejected, world.acquire(priority_class=INTERACTIVE)).retry_after_s == pytest.approx(0.5, rel=0.1)
    assert only(Rejected, world.acquire(priority_class=BATCH)).retry_after_s == 0.0, "none of it was ever granted"


def test_a_class_under_its_floor_goes_first_and_no_further() -> None:
    world = World(registration(max_sequences=10), floors=(0.5, 0.0, 0.2), preempts_max=0)
    leases = world.fill(10)
    for _ in range(3):
        world.acquire(priority_class=BATCH)
    for _ in range(3):
        world.acquire()
    order = [only(Granted, world.release(lease)).request for lease in leases[:6]]
    assert order == [11, 14, 15, 16, 12, 13], "a fifth of nine is one"


def test_room_is_kept_for_a_class_above_while_it_may_ask_again() -> None:
    world = World(registration(max_sequences=10), floors=(0.5, 0.0, 0.0), demand_s=10.0)
    world.release(world.fill(1)[0])
    granted = [world.acquire(priority_class=BATCH) for _ in range(7)]
    assert [len(of(Granted, events)) for events in granted] == [1] * 5 + [0] * 2
    assert len(of(Granted, world.acquire())) == 1, "what is kept is there at once"
    world.wait(10.1)
    assert len(of(Granted, world.report())) == 2


def test_a_class_that_nobody_uses_keeps_nothing() -> None:
    world = World(registration(max_sequences=10), floors=(0.5, 0.2, 0.05))
    assert len(world.fill(10, priority_class=BATCH)) == 10


def test_who_starved_takes_a_share_of_the_class_above() -> None:
    world = World(registration(max_sequences=1), promote_after_s=(1e9, 10.0, 60.0), floors=NO_FLOORS, preempts_max=0)
    lease = world.fill(1)[0]
    for _ in range(20):
        world.acquire(priority_class=STANDARD)
    world.wait(9.0)
    for _ in range(40):
        world.acquire()
    assert drained_classes(world, lease, 5) == "iiiii"


def drained_classes(world: World, lease: int, count: int) -> str:
    """The initials of the classes that one slot serves."""
    served = ""
    for _ in range(count):
        granted = only(Granted, world.release(lease))
        served += "?isb"[granted.priority_class]
        lease = granted.lease
    return served


def test_starvation_promotes_after_its_bound_and_says_so() -> None:
    world = World(registration(max_sequences=1), promote_after_s=(1e9, 10.0, 60.0), floors=NO_FLOORS, preempts_max=0)
    lease = world.fill(1)[0]
    for _ in range(20):
        world.acquire(priority_class=STANDARD)
    for _ in range(40):
        world.acquire()
    world.wait(10.1)
    served = drained_classes(world, lease, 20)
    assert served.startswith("s")
    assert 3 <= served.count("s") <= 5, "a quarter of one tenant's weight: a fifth of the turns"


def test_batch_is_promoted_by_one_class_only() -> None:
    world = World(registration(max_sequences=1), promote_after_s=(1e9, 1e9, 60.0), floors=NO_FLOORS, preempts_max=0)
    lease = world.fill(1)[0]
    world.acquire(priority_class=BATCH)
    world.wait(60.1)
    world.acquire(priority_class=STANDARD)
    world.acquire(priority_class=STANDARD)
    world.acquire()
    first = only(Granted, world.release(lease))
    second = only(Granted, world.release(first.lease))
    assert (first.priority_class, second.priority_class) == (INTERACTIVE, BATCH)
    assert (first.promoted, second.promoted) == (False, True)


def test_tenants_share_by_cost_and_not_by_requests() -> None:
    world = World(registration(max_sequences=1, kv_blocks=10_000))
    lease = world.fill(1)[0]
    for _ in range(30):
        world.acquire(tenant="long", prompt_tokens=400, max_tokens=50)
        world.acquire(tenant="short", prompt_tokens=100, max_tokens=12)
    order = drained(world, lease, 25)
    short = sum(number % 2 for number in order)
    assert 19 <= short <= 21, "four times as many that cost a quarter"


def test_a_tenant_of_double_weight_gets_double() -> None:
    world = World(registration(max_sequences=1))
    lease = world.fill(1)[0]
    for _ in range(30):
        world.acquire(tenant="a", tenant_weight=2.0)
        world.acquire(tenant="b")
    order = drained(world, lease, 30)
    assert 19 <= sum(number % 2 == 0 for number in order) <= 21


def test_an_idle_tenant_earns_no_credit() -> None:
    world = World(registration(max_sequences=1))
    lease = world.fill(1)[0]
    for _ in range(60):
        world.acquire(tenant="busy")
    for _ in range(20):
        lease = only(Granted, world.release(lease)).lease
    for _ in range(30):
        world.acquire(tenant="idle")
    order = drained(world, lease, 20)
    assert 9 <= sum(number > 61 for number in order) <= 11


def test_the_end_of_a_lease_corrects_what_was_charged() -> None:
    world = World(registration(max_sequences=1, kv_blocks=10_000))
    lease = only(Granted, world.acquire(tenant="a", prompt_tokens=100, max_tokens=1000)).lease
    world.acquire(tenant="a")
    world.acquire(tenant="b")
    lane = world.scheduler._fleet.pools["m"].queue.lanes[0]
    account = lane.accounts.find("a")
    assert account is not None
    assert account.counter == 100 + 2 * 1000
    world.scheduler.release(world.now, 1, lease, Usage(completion_tokens=10, cached_tokens=64))
    charged = 8 + 2 * 8 if account.leases else 0
    assert account.counter == 36 + 2 * 10 + charged


def test_what_was_given_back_costs_nothing() -> None:
    world = World(registration(max_sequences=1))
    lease = world.fill(1, tenant="a")[0]
    world.acquire(tenant="a")
    account = world.scheduler._fleet.pools["m"].queue.lanes[0].accounts.find("a")
    assert account is not None
    before = account.counter
    world.scheduler.bounced(world.now, 1, lease)
    assert (before, account.counter) == (24.0, 0.0)


def test_tenants_that_are_gone_are_forgotten() -> None:
    world = World(registration(max_sequences=2))
    for number in range(10_000):
        world.release(world.fill(1, tenant=f"tenant-{number}", max_tokens=number % 50)[0])
    assert len(world.scheduler._fleet.pools["m"].queue.lanes[0].accounts) < 5000


def test_a_tenant_that_floods_leaves_places_in_the_queue() -> None:
    world = World(registration(max_sequences=1), queue_requests_max=90)
    world.fill(1, tenant="a")
    outcomes = [world.acquire(tenant="a") for _ in range(100)]
    assert sum(len(of(Queued, events)) for events in outcomes) == 80
    only(Queued, world.acquire(tenant="b"))


def test_the_earliest_deadline_of_a_tenant_goes_first() -> None:
    world = World(registration(max_sequences=1), deadline_horizon_s=30.0)
    lease = world.fill(1)[0]
    for within in (500.0, 20.0, 10.0, 25.0):
        world.acquire(within=within)
    assert drained(world, lease, 4) == [4, 3, 5, 2]


def test_a_deadline_does_not_pass_what_has_waited_for_the_horizon() -> None:
    world = World(registration(max_sequences=1), deadline_horizon_s=10.0)
    lease = world.fill(1)[0]
    world.acquire()
    world.wait(15.0)
    world.acquire(within=8.0)
    assert drained(world, lease, 2) == [2, 3]


def test_a_first_token_that_would_come_too_late_is_refused_at_once() -> None:
    world = World(registration(max_sequences=1, kv_blocks=10_000))
    steps = tuple((10.0 + tokens, tokens, 1) for tokens in (0, 50, 100, 500, 1000) for _ in range(3))
    for _ in range(4):
        world.report(steps=steps)
    lease = world.fill(1)[0]
    refused = only(Rejected, world.acquire(prompt_tokens=3000, within=2.0))
    assert refused.reason.name == "DEADLINE"
    assert "first token" in refused.detail
    only(Queued, world.acquire(prompt_tokens=3000, within=20.0))
    world.wait(18.0)
    assert reason(world.release(lease)) == "DEADLINE", "its turn came too late"


def test_the_youngest_lease_of_the_lowest_class_is_asked_back() -> None:
    world = World(registration(max_sequences=4), floors=NO_FLOORS)
    world.fill(1, priority_class=STANDARD)
    batch = world.fill(2, priority_class=BATCH)
    world.fill(1)
    events = world.acquire()
    assert only(Preempt, events).lease == batch[1]
    events = world.scheduler.yielded(world.now, 1, batch[1])
    assert only(Granted, events).request == 5
    assert only(Queued, events).request == 3, "back in its place"


def test_who_is_refused_asks_another_once() -> None:
    world = World(registration(max_sequences=3), floors=NO_FLOORS)
    leases = world.fill(3, priority_class=BATCH)
    assert only(Preempt, world.acquire()).lease == leases[2]
    assert only(Preempt, world.scheduler.refused(world.now, 1, leases[2])).lease == leases[1]
    assert world.scheduler.refused(world.now, 1, leases[1]) == []


def test_nobody_is_asked_in_vain() -> None:
    world = World(registration(max_sequences=3, kv_blocks=20), floors=NO_FLOORS)
    world.fill(3, priority_class=BATCH)
    assert of(Preempt, world.acquire(choices=2, prompt_tokens=16)) == [], "one slot is not enough"
    assert of(Preempt, world.acquire(priority_class=BATCH)) == [], "the same class"
    only(Preempt, world.acquire())


def test_a_class_is_not_asked_below_its_floor() -> None:
    world = World(registration(max_sequences=10), floors=(0.0, 0.0, 0.2))
    world.fill(8)
    world.fill(2, priority_class=BATCH)
    assert of(Preempt, world.acquire()) == []


def test_questions_are_bounded_and_silence_is_a_refusal() -> None:
    world = World(registration(max_sequences=6), floors=NO_FLOORS, preempts_max=2, preempt_answer_s=2.0)
    world.fill(6, priority_class=BATCH)
    asked = [len(of(Preempt, world.acquire())) for _ in range(4)]
    assert asked == [1, 1, 0, 0]
    world.wait(2.1)
    assert len(of(Preempt, world.report())) == 2


def test_a_request_of_a_class_that_is_none_is_interactive() -> None:
    world = World(registration(max_sequences=1), preempts_max=0)
    lease = world.fill(1)[0]
    world.acquire(priority_class=BATCH)
    world.acquire(priority_class=0)
    assert drained(world, lease, 2) == [3, 2]


def test_floors_over_everything_are_refused() -> None:
    with pytest.raises(ValidationError, match="more than 1 together"):
        RouterSettings(floor_interactive=0.6, floor_standard=0.5)
    config = RouterSettings(floor_batch=0.1, promote_batch_s=30.0).scheduler()
    assert (config.floors, config.promote_after_s[1:]) == ((0.5, 0.2, 0.1), (10.0, 30.0))


def test_a_reported_load_of_others_is_no_room() -> None:
    world = World(registration(max_sequences=4), floors=(0.5, 0.0, 0.0))
    world.release(world.fill(1)[0])
    world.scheduler.worker_reported(world.now, 1, Report(free_blocks=1000, running=2))
    assert of(Granted, world.acquire(priority_class=BATCH)) == [], "what is left is kept for interactive ones"
