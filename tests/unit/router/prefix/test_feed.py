"""Streams of block events: snapshots, gaps, duplicates, reorder, garbage."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.router.prefix.feed import BlockStreamError, BlockUpdate, Feed, FeedState
from services.router.prefix.index import PrefixIndex
from tests.unit.router.prefix.test_index import BLOCKS, matched


def snapshot(sequence: int, *blocks: bytes) -> BlockUpdate:
    """A whole one in one message."""
    return BlockUpdate(sequence, snapshot_begin=True, snapshot_end=True, stored=blocks)


def feed_of(blocks_max: int = 100) -> tuple[PrefixIndex, Feed]:
    index = PrefixIndex(1_000)
    return index, Feed(index, blocks_max)


def test_a_snapshot_then_updates() -> None:
    index, feed = feed_of()
    assert not feed.apply(BlockUpdate(1, snapshot_begin=True, stored=BLOCKS[:2]))
    assert feed.state.name == "SNAPSHOT"
    assert not feed.apply(BlockUpdate(2, snapshot_end=True, stored=BLOCKS[2:4]))
    assert not feed.apply(BlockUpdate(3, stored=BLOCKS[4:6], removed=BLOCKS[3:5]))
    assert feed.state.name == "FOLLOWING"
    assert matched(index, BLOCKS) == {feed.holder: 3}
    assert index.held(feed.holder) == 4


def test_updates_before_the_first_snapshot_are_ignored() -> None:
    index, feed = feed_of()
    assert not feed.apply(BlockUpdate(1, stored=BLOCKS))
    assert matched(index, BLOCKS) == {}


def test_after_a_gap_all_is_forgotten_and_a_snapshot_asked_for() -> None:
    index, feed = feed_of()
    feed.apply(snapshot(1, *BLOCKS))
    assert feed.apply(BlockUpdate(3, stored=BLOCKS))
    assert matched(index, BLOCKS) == {}
    assert not feed.apply(BlockUpdate(4, stored=BLOCKS))
    assert matched(index, BLOCKS) == {}
    assert not feed.apply(snapshot(5, *BLOCKS[:2]))
    assert matched(index, BLOCKS) == {feed.holder: 2}


def test_a_snapshot_that_begins_at_a_gap_needs_no_other() -> None:
    index, feed = feed_of()
    feed.apply(snapshot(1, *BLOCKS))
    assert not feed.apply(snapshot(7, *BLOCKS[:3]))
    assert matched(index, BLOCKS) == {feed.holder: 3}


def test_a_gap_within_a_snapshot_asks_for_another() -> None:
    index, feed = feed_of()
    feed.apply(BlockUpdate(1, snapshot_begin=True, stored=BLOCKS[:2]))
    assert feed.apply(BlockUpdate(3, snapshot_end=True, stored=BLOCKS[4:6]))
    assert matched(index, BLOCKS) == {}


def test_duplicates_are_ignored() -> None:
    index, feed = feed_of()
    feed.apply(snapshot(1, *BLOCKS))
    feed.apply(BlockUpdate(2, removed=BLOCKS[5:]))
    assert not feed.apply(snapshot(1, *BLOCKS))
    assert matched(index, BLOCKS) == {feed.holder: 5}


@pytest.mark.parametrize(
    ("update", "detail"),
    [
        (BlockUpdate(0), "count from 1"),
        (BlockUpdate(2, snapshot_end=True), "has not begun"),
        (BlockUpdate(2, stored=BLOCKS[:11]), "more than the 10 blocks"),
    ],
)
def test_garbage_ends_the_stream_with_a_reason(update: BlockUpdate, detail: str) -> None:
    _, feed = feed_of(blocks_max=10)
    feed.apply(snapshot(1))
    with pytest.raises(BlockStreamError, match=detail):
        feed.apply(update)


OPS = st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from(BLOCKS), max_size=5)), max_size=30)


@given(OPS, st.data())
@settings(max_examples=200, deadline=None)
def test_whatever_the_network_does_the_index_is_right_after_the_next_snapshot(
    ops: list[tuple[bool, list[bytes]]], data: st.DataObject
) -> None:
    """Lost, repeated and swapped messages: what is believed is never more than some snapshot and updates in order."""
    index, feed = feed_of()
    held: set[bytes] = set()
    sent = [snapshot(1)]
    truth = [frozenset(held)]
    for stores, blocks in ops:
        held = held | set(blocks) if stores else held - set(blocks)
        sequence = len(sent) + 1
        update = BlockUpdate(sequence, stored=blocks) if stores else BlockUpdate(sequence, removed=blocks)
        sent.append(update)
        truth.append(frozenset(held))
    order = data.draw(st.lists(st.sampled_from(range(len(sent))), max_size=40)) if sent else []
    lost = False
    for position, number in enumerate(order):
        ask = feed.apply(sent[number])
        lost = lost or ask or (position == 0 and number != 0)
        if feed.state is FeedState.FOLLOWING:
            assert {each for each in BLOCKS if matched(index, [each])} == truth[max(order[: position + 1])]
    if any(b > a + 1 for a, b in pairwise([-1, *order])):
        assert lost or feed.state is not FeedState.SNAPSHOT
    feed.apply(snapshot(len(sent) + 1, *held))
    assert {each for each in BLOCKS if matched(index, [each])} == held
    assert index.held(feed.holder) == len(held)
