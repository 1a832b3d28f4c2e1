"""A router that follows the messages knows what the engine holds, whatever happens and whoever asks again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.blocks import split
from services.worker import blocks
from services.worker.blocks import BATCH_S, BlockFeed, BlockMirror
from services.worker.engine.base import KvChange

if TYPE_CHECKING:
    from penstock.v1 import registry_pb2


def name(number: int) -> bytes:
    return number.to_bytes(16, "little")


class Router:
    """The other end."""

    def __init__(self) -> None:
        self.held: set[bytes] = set()
        self.sequence = 0
        self.largest = 0
        self.snapshots = 0
        self.inside = False

    def take(self, message: registry_pb2.BlockEvents) -> None:
        self.sequence += 1
        assert message.sequence == self.sequence
        if message.snapshot_begin:
            self.held.clear()
            self.inside = True
        stored, removed = split(message.stored), split(message.removed)
        assert not set(stored) & self.held
        assert not self.inside or not removed
        self.held |= set(stored)
        assert set(removed) <= self.held
        self.held -= set(removed)
        self.largest = max(self.largest, len(self.held))
        if message.snapshot_end:
            assert self.inside
            self.inside = False
            self.snapshots += 1


def read(feed: BlockFeed, router: Router, now: float = 0.0, messages: int = 1_000) -> None:
    """All that is owed, or its next `messages`."""
    while feed.due_at < math.inf and messages:
        router.take(feed.message(now))
        messages -= 1


changes = st.builds(
    lambda stored, removed, snapshot: KvChange(
        [name(each) for each in stored], [] if snapshot else [name(each) for each in removed - stored], snapshot
    ),
    st.frozensets(st.integers(0, 30)), st.frozensets(st.integers(0, 30)), st.integers(0, 9).map(lambda n: n == 0),
)  # fmt: skip
actions = st.one_of(changes, st.just("resend"), st.integers(1, 3))


@settings(max_examples=300, deadline=None)
@given(st.lists(actions, max_size=40), st.integers(1, 12), st.integers(1, 20))
def test_the_router_ends_with_what_the_engine_holds(happens: list[object], piece: int, backlog: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "PIECE_BLOCKS", piece)
        patch.setattr(blocks, "BACKLOG_BLOCKS_MAX", backlog)
        mirror, router = BlockMirror(), Router()
        feed = BlockFeed(mirror)
        largest = 0
        for action in happens:
            if isinstance(action, KvChange):
                feed.changed(mirror.apply(action))
                largest = max(largest, len(mirror.held))
            elif isinstance(action, int):
                read(feed, router, messages=action)
            else:
                feed.resend()
        read(feed, router)
    assert router.held == set(mirror.held)
    assert router.largest <= largest
    assert router.snapshots >= 1


def test_an_empty_cache_has_a_snapshot_too() -> None:
    feed = BlockFeed(BlockMirror())
    message = feed.message(0.0)
    assert (message.sequence, message.snapshot_begin, message.snapshot_end, message.stored) == (1, True, True, b"")
    assert feed.due_at == math.inf


def test_changes_leave_at_once_after_a_quiet_time_and_together_otherwise() -> None:
    mirror = BlockMirror()
    feed = BlockFeed(mirror)
    feed.message(10.0)
    for number in (1, 2):
        feed.changed(mirror.apply(KvChange([name(number)])))
    assert feed.due_at == 10.0 + BATCH_S
    message = feed.message(11.0)
    assert (message.stored, message.removed) == (name(1) + name(2), b"")
    assert feed.due_at == math.inf


def test_what_came_and_went_is_not_told() -> None:
    mirror = BlockMirror()
    feed = BlockFeed(mirror)
    feed.message(0.0)
    feed.changed(mirror.apply(KvChange([name(1), name(2)])))
    feed.changed(mirror.apply(KvChange([], [name(1)])))
    feed.changed(mirror.apply(KvChange([], [name(7)])))  # unknown
    assert feed.message(1.0).stored == name(2)
    assert feed.due_at == math.inf


def test_a_stream_that_is_owed_too_much_gets_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocks, "BACKLOG_BLOCKS_MAX", 3)
    mirror, router = BlockMirror(), Router()
    feed = BlockFeed(mirror)
    read(feed, router)
    feed.changed(mirror.apply(KvChange([name(each) for each in range(3)])))
    read(feed, router)
    assert router.snapshots == 1
    feed.changed(mirror.apply(KvChange([name(each) for each in range(3, 7)])))
    read(feed, router)
    assert router.snapshots == 2
    assert router.held == {name(each) for each in range(7)}
