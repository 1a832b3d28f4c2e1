"""The prefix index against a model of plain sets, its bounds, and promises."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from services.router.prefix.index import PrefixIndex, holders
from services.router.prefix.promises import Promises

if TYPE_CHECKING:
    from collections.abc import Sequence


def block(number: int) -> bytes:
    """A hash; the first byte varies, so that several shards take part."""
    return bytes([number % 7]) + number.to_bytes(15, "little")


BLOCKS = [block(number) for number in range(24)]
SOME = st.lists(st.sampled_from(BLOCKS), max_size=8)


def matched(index: PrefixIndex, chain: Sequence[bytes]) -> dict[int, int]:
    """Holder -> blocks."""
    return {holder: depth for depth, bits in index.walk(chain, {}) for holder in holders(bits)}


def naive(sets: dict[int, set[bytes]], chain: Sequence[bytes]) -> dict[int, int]:
    """The same, one holder at a time."""
    found = {}
    for holder, held in sets.items():
        depth = next((i for i, each in enumerate(chain) if each not in held), len(chain))
        if depth:
            found[holder] = depth
    return found


class IndexMachine(RuleBasedStateMachine):
    """Large enough that nothing is evicted: then it must agree with sets."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(1_000)
        self.sets: dict[int, set[bytes]] = {}

    @rule()
    def open(self) -> None:
        holder = self.index.open_holder()
        assert holder not in self.sets
        self.sets[holder] = set()

    @precondition(lambda self: self.sets)
    @rule(data=st.data(), blocks=SOME)
    def store(self, data: st.DataObject, blocks: list[bytes]) -> None:
        holder = data.draw(st.sampled_from(sorted(self.sets)))
        self.index.store(holder, blocks)
        self.sets[holder] |= set(blocks)

    @precondition(lambda self: self.sets)
    @rule(data=st.data(), blocks=SOME)
    def drop(self, data: st.DataObject, blocks: list[bytes]) -> None:
        holder = data.draw(st.sampled_from(sorted(self.sets)))
        self.index.drop(holder, blocks)
        self.sets[holder] -= set(blocks)

    @precondition(lambda self: self.sets)
    @rule(data=st.data(), sweeps=st.sampled_from([0, 0, 1, 600]))
    def close(self, data: st.DataObject, sweeps: int) -> None:
        holder = data.draw(st.sampled_from(sorted(self.sets)))
        self.index.close_holder(holder)
        del self.sets[holder]
        for other in list(self.sets)[:1]:
            for _ in range(sweeps):
                self.index.store(other, [])

    @rule(chain=SOME)
    def walk(self, chain: list[bytes]) -> None:
        assert matched(self.index, chain) == naive(self.sets, chain)
        depths = [depth for depth, _ in self.index.walk(chain, {})]
        assert depths == sorted(set(depths))

    @invariant()
    def counts_agree(self) -> None:
        for holder, held in self.sets.items():
            assert self.index.held(holder) == len(held)


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@given(st.lists(st.tuples(st.integers(0, 2), st.lists(st.integers(0, 5_000), max_size=60)), max_size=20))
@settings(max_examples=50, deadline=None)
def test_never_over_its_bound(stores: list[tuple[int, list[int]]]) -> None:
    index = PrefixIndex(40)
    opened = [index.open_holder() for _ in range(3)]
    for holder, numbers in stores:
        index.store(opened[holder], [block(number) for number in numbers])
        assert len(index) <= 40
    assert sum(index.held(holder) for holder in opened) >= len(index)


def test_what_was_used_lately_is_evicted_last() -> None:
    index = PrefixIndex(1_000)
    holder = index.open_holder()
    old = [bytes([0]) + number.to_bytes(15, "little") for number in range(800)]
    index.store(holder, old)
    index.used(old[:8])
    index.store(holder, [bytes([0]) + number.to_bytes(15, "little") for number in range(5_000, 5_300)])
    assert matched(index, old[:8]) == {holder: 8}
    assert matched(index, old[8:16]) == {}


def test_a_closed_holder_is_forgotten_at_once_and_its_number_comes_back_clean() -> None:
    index = PrefixIndex(1_000)
    first, second = index.open_holder(), index.open_holder()
    index.store(first, BLOCKS)
    index.store(second, BLOCKS[:3])
    index.close_holder(first)
    assert matched(index, BLOCKS) == {second: 3}
    for _ in range(300):
        index.store(second, [])
    again = index.open_holder()
    assert again == first
    assert matched(index, BLOCKS) == {second: 3}
    assert len(index) == 3


def test_holders_that_come_and_go_do_not_pile_up() -> None:
    index = PrefixIndex(10_000)
    for turn in range(1_000):
        holder = index.open_holder()
        index.store(holder, [block(turn)])
        index.close_holder(holder)
    assert holder < 200
    assert len(index) < 200


def test_promises_count_until_they_end() -> None:
    index, promises = PrefixIndex(100), Promises(100)
    one, two = index.open_holder(), index.open_holder()
    index.store(one, BLOCKS[:2])
    promises.add(one, BLOCKS[2:4], until=10.0)
    promises.add(two, BLOCKS[:1], until=20.0)
    assert index.walk(BLOCKS, promises.sets) == [(1, 1 << two), (4, 1 << one)]
    promises.expire(10.0)
    assert index.walk(BLOCKS, promises.sets) == [(1, 1 << two), (2, 1 << one)]
    promises.expire(20.0)
    assert index.walk(BLOCKS, promises.sets) == [(2, 1 << one)]
    assert (len(promises), promises.sets) == (0, {})


def test_promises_are_bounded() -> None:
    promises = Promises(4)
    promises.add(0, BLOCKS[:3], until=10.0)
    promises.add(1, BLOCKS[:3], until=10.0)
    assert len(promises) == 3
    promises.expire(10.0)
    promises.add(1, BLOCKS[:3], until=20.0)
    assert len(promises) == 3
