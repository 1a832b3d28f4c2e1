"""Each way to be refused, and what is said about coming back."""

from __future__ import annotations

import pytest

from services.router.events import Granted, Queued, Rejected, RejectReason
from services.router.ledger import DuplicateRequestError
from services.router.requests import Request
from tests.unit.router.world import World, of, only, reason, registration


def test_a_full_queue_says_when_the_next_place_is_free() -> None:
    world = World(registration(max_sequences=1), queue_requests_max=2)
    lease = world.fill(1)[0]
    world.acquire()
    world.acquire()
    refused = only(Rejected, world.acquire())
    assert (refused.reason, refused.retry_after_s) == (RejectReason.QUEUE_FULL, 0.0), "no grant was seen yet"
    # One request leaves per second of backlog.
    for _ in range(30):
        world.wait(1.0)
        lease = only(Granted, world.release(lease)).lease
        world.acquire()
    refused = only(Rejected, world.acquire())
    assert refused.retry_after_s == pytest.approx(1.0, rel=0.1)
    assert "2 requests" in refused.detail


def test_the_second_refused_gets_the_second_place_and_nobody_more_than_the_whole_queue() -> None:
    world = World(registration(max_sequences=1), queue_requests_max=3)
    lease = world.fill(1)[0]
    for _ in range(3):
        world.acquire()
    for _ in range(30):
        world.wait(0.5)
        lease = only(Granted, world.release(lease)).lease
        world.acquire()
    told = [only(Rejected, world.acquire()).retry_after_s for _ in range(5)]
    assert told == pytest.approx([0.5, 1.0, 1.5, 1.5, 1.5], rel=0.1)


def test_the_token_bound_waits_for_as_many_tokens_as_are_missing() -> None:
    world = World(registration(max_sequences=1), queue_tokens_max=400)
    lease = world.fill(1)[0]
    world.acquire(prompt_tokens=100, max_tokens=100)
    for _ in range(30):
        world.wait(1.0)
        world.acquire(prompt_tokens=100, max_tokens=100)
        lease = only(Granted, world.release(lease)).lease
    world.acquire(prompt_tokens=100, max_tokens=100)
    refused = only(Rejected, world.acquire(prompt_tokens=200, max_tokens=200))
    assert refused.reason is RejectReason.QUEUE_FULL
    assert refused.retry_after_s == pytest.approx(400 / 200, rel=0.1), "200 tokens leave in a second"


def test_one_request_over_the_token_bound_may_wait_alone() -> None:
    world = World(registration(max_sequences=1), queue_tokens_max=10)
    world.fill(1)
    assert only(Queued, world.acquire(prompt_tokens=100)).position == 1
    assert reason(world.acquire(prompt_tokens=1, max_tokens=1)) == "QUEUE_FULL"


def test_without_a_queue_a_busy_model_refuses_and_a_free_one_grants() -> None:
    world = World(registration(max_sequences=1), queue_requests_max=0)
    world.fill(1)
    assert reason(world.acquire()) == "QUEUE_FULL"


def test_a_known_model_without_workers_holds_its_requests_for_a_while() -> None:
    world = World(registration(), no_worker_wait_s=10.0)
    world.scheduler.worker_gone(world.now, 1)
    only(Queued, world.acquire())
    assert world.wait(9.9) == []
    events = world.wait(0.2)
    assert reason(events) == "NO_WORKERS"
    assert only(Rejected, events).retry_after_s == 0.0


def test_a_worker_that_comes_in_time_takes_the_waiting() -> None:
    world = World(models=("m",))
    world.acquire()
    world.wait(9.0)
    events = world.scheduler.worker_registered(world.now, registration())
    only(Granted, events)
    assert of(Rejected, world.wait(20.0)) == []


def test_waiting_without_workers_counts_from_when_the_last_one_went() -> None:
    world = World(registration(max_sequences=1))
    world.fill(1)
    world.acquire()
    world.wait(60.0)
    world.scheduler.worker_gone(world.now, 1)
    assert of(Rejected, world.wait(9.9)) == []
    assert reason(world.wait(0.2)) == "NO_WORKERS"


def test_only_draining_workers_are_no_workers() -> None:
    world = World(registration())
    world.report(draining=True)
    world.acquire()
    assert reason(world.wait(10.1)) == "NO_WORKERS"


def test_a_request_that_excludes_every_worker_is_not_kept_for_ever() -> None:
    world = World(registration(1))
    only(Queued, world.acquire(excluded=frozenset({1})))
    assert reason(world.wait(10.1)) == "NO_WORKERS"


def test_an_unknown_model_is_refused_once_the_workers_had_time_to_dial() -> None:
    world = World(registration(), settle_s=2.0)
    only(Queued, world.acquire(model="x"))
    assert of(Rejected, world.wait(1.9)) == []
    assert reason(world.wait(0.2)) == "UNKNOWN_MODEL"
    assert reason(world.acquire(model="x")) == "UNKNOWN_MODEL"
    assert [view.model for view in world.scheduler.models()] == ["m"]


def test_a_request_before_the_first_registration_survives_a_router_restart() -> None:
    world = World(settle_s=2.0)
    only(Queued, world.acquire())
    world.wait(1.0)
    only(Granted, world.scheduler.worker_registered(world.now, registration()))


def test_a_declared_model_waits_without_ever_having_been_seen() -> None:
    world = World(models=("m",))
    world.wait(5.0)
    only(Queued, world.acquire())
    assert world.scheduler.model("m") is not None


def test_a_deadline_that_passes_in_the_queue() -> None:
    world = World(registration(max_sequences=1))
    world.fill(1)
    only(Queued, world.acquire(within=3.0))
    assert of(Rejected, world.wait(2.9)) == []
    assert reason(world.wait(0.2)) == "DEADLINE"


def test_a_deadline_that_the_queue_cannot_meet_is_refused_at_once() -> None:
    world = World(registration(max_sequences=1))
    lease = world.fill(1)[0]
    for _ in range(10):
        world.acquire()
    for _ in range(10):
        world.wait(1.0)
        lease = only(Granted, world.release(lease)).lease
        world.acquire()
    refused = only(Rejected, world.acquire(within=5.0))
    assert refused.reason is RejectReason.DEADLINE
    assert "5.0 s" in refused.detail
    only(Queued, world.acquire(within=30.0))


def test_a_deadline_that_had_passed_on_arrival() -> None:
    assert reason(World(registration()).acquire(within=0.0)) == "DEADLINE"


@pytest.mark.parametrize(
    "size",
    [
        {"prompt_tokens": 4000, "max_tokens": 97},
        {"choices": 3},
        {"choices": 2, "prompt_tokens": 10, "max_tokens": 500},
    ],
    ids=["context length", "sequences", "KV blocks"],
)
def test_what_no_worker_could_ever_hold(size: dict[str, int]) -> None:
    world = World(registration(kv_blocks=60, context_length=4096))
    assert reason(world.acquire(**size)) == "TOO_LARGE"


def test_large_requests_wait_for_the_one_worker_that_can_hold_them() -> None:
    world = World(registration(1, max_sequences=8, kv_blocks=10), registration(2, max_sequences=1, kv_blocks=100))
    assert only(Granted, world.acquire(prompt_tokens=1000)).incarnation == 2
    only(Queued, world.acquire(prompt_tokens=1000))
    events = world.scheduler.worker_gone(world.now, 2)
    assert reason(events) == "TOO_LARGE", "now nobody could"


def test_while_there_is_no_worker_nothing_is_too_large() -> None:
    world = World(models=("m",))
    only(Queued, world.acquire(prompt_tokens=1_000_000))
    assert reason(world.scheduler.worker_registered(world.now, registration())) == "TOO_LARGE"


def test_three_bounces_end_a_request() -> None:
    world = World(registration())
    lease = world.fill(1)[0]
    for _ in range(2):
        events = world.scheduler.bounced(world.now, 1, lease)
        assert of(Granted, events) == [], "the worker's report is out of date"
        lease = only(Granted, world.report()).lease
    assert reason(world.scheduler.bounced(world.now, 1, lease)) == "BOUNCED_TOO_OFTEN"
    assert world.scheduler.live_requests == 0


def test_draining_refuses_old_and_new() -> None:
    world = World(registration(max_sequences=1))
    lease = world.fill(1)[0]
    world.acquire()
    assert reason(world.scheduler.drain(world.now)) == "DRAINING"
    assert reason(world.acquire()) == "DRAINING"
    assert world.release(lease) == []
    assert world.scheduler.live_requests == 0


def test_a_live_request_number_cannot_be_used_again() -> None:
    world = World(registration())
    request = Request(gateway=1, number=5, model="m", prompt_tokens=1, max_tokens=1, arrived=world.now)
    again = Request(gateway=1, number=5, model="m", prompt_tokens=1, max_tokens=1, arrived=world.now)
    lease = only(Granted, world.scheduler.acquire(world.now, request)).lease
    with pytest.raises(DuplicateRequestError, match="request 5"):
        world.scheduler.acquire(world.now, again)
    world.release(lease)
    only(Granted, world.scheduler.acquire(world.now, again))
