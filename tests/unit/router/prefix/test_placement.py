"""Prefix hits in placement: where a shared prompt goes, what is predicted, and when predictions are not used."""

from __future__ import annotations

from services.router.events import Granted, TrustChanged
from services.router.prefix.check import HitCheck
from services.router.prefix.feed import BlockUpdate
from services.router.requests import Usage
from tests.unit.router.prefix.test_index import BLOCKS
from tests.unit.router.world import World, of, only, registration

CHAIN = b"".join(BLOCKS[:8])


def world_of(workers: int, holder: int | None = None, **fields: int) -> World:
    """Idle workers that report blocks; one holds the chain."""
    infos = [registration(n, reports_blocks=True, max_sequences=64, **fields) for n in range(1, workers + 1)]
    world = World(*infos)
    for n in range(1, workers + 1):
        stored = BLOCKS[:8] if n == holder else []
        update = BlockUpdate(1, snapshot_begin=True, snapshot_end=True, stored=stored)
        world.scheduler.worker_blocks(world.now, n, update)
    return world


def test_a_prompt_goes_where_its_prefix_is() -> None:
    world = world_of(4, holder=3)
    granted = only(Granted, world.acquire(prompt_tokens=130, block_hashes=CHAIN))
    assert (granted.incarnation, granted.matched_tokens) == (3, 128)


def test_a_token_is_left_to_compute_and_hits_are_whole_blocks_of_the_engine() -> None:
    world = world_of(1, holder=1)
    assert only(Granted, world.acquire(prompt_tokens=128, block_hashes=CHAIN)).matched_tokens == 112
    world = world_of(1, holder=1, block_size=48)
    assert only(Granted, world.acquire(prompt_tokens=130, block_hashes=CHAIN)).matched_tokens == 96


def test_a_burst_of_a_new_prefix_stays_together() -> None:
    world = world_of(4)
    first, second = (only(Granted, world.acquire(prompt_tokens=130, block_hashes=CHAIN)) for _ in range(2))
    assert (first.matched_tokens, second.matched_tokens) == (0, 128)
    assert first.incarnation == second.incarnation


def test_a_hot_prefix_is_copied_when_its_worker_is_far_behind() -> None:
    world = world_of(2, holder=1)
    world.report(1, running=1, queued_prefill_tokens=1_500)
    assert only(Granted, world.acquire(prompt_tokens=130, block_hashes=CHAIN)).incarnation == 2


def test_a_session_goes_back_among_equals() -> None:
    world = world_of(3)
    first = only(Granted, world.acquire(session="s"))
    world.release(first.lease)
    world.wait(2.0)
    world.report(first.incarnation, leases_ended=(first.lease,))
    assert only(Granted, world.acquire(session="s")).incarnation == first.incarnation


def test_wrong_predictions_are_not_used_until_they_come_true_again() -> None:
    world = world_of(1, holder=1)

    def serve(cached: int) -> tuple[int, list[TrustChanged]]:
        granted = only(Granted, world.acquire(prompt_tokens=130, block_hashes=CHAIN))
        events = world.scheduler.release(world.now, 1, granted.lease, Usage(5, cached))
        world.report(1, leases_ended=(granted.lease,))
        return granted.matched_tokens, of(TrustChanged, events)

    lost = [serve(0)[1] for _ in range(16)]
    assert [change.trusted for events in lost for change in events] == [False]
    back = [change for _ in range(200) for change in serve(128)[1]]
    assert [change.trusted for change in back] == [True]


def test_precision_and_recall() -> None:
    check = HitCheck(0.5)
    check.add(100, 50)
    assert (check.precision, check.recall) == (0.5, 1.0)
    check = HitCheck(0.5)
    check.add(50, 100)
    assert (check.precision, check.recall) == (1.0, 0.5)
    assert not check.add(0, 0)
