"""The contract of a store, run against every implementation of the interface."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cache.store import MemoryStore, Store

if TYPE_CHECKING:
    from collections.abc import Callable

ENTRY_BYTES = 20


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


IMPLEMENTATIONS: dict[str, Callable[[int, Clock], Store]] = {
    "memory": lambda bytes_max, clock: MemoryStore(bytes_max, clock=clock),
}


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture(params=sorted(IMPLEMENTATIONS))
def make(request: pytest.FixtureRequest) -> Callable[[int, Clock], Store]:
    return IMPLEMENTATIONS[request.param]


async def test_a_value_put_is_got_until_its_time_is_over(make: Callable[[int, Clock], Store]) -> None:
    clock = Clock()
    store = make(1000, clock)
    assert await store.get(key(1)) is None
    assert await store.put(key(1), b"one", 10)
    clock.now += 9.9
    assert await store.get(key(1)) == b"one"
    clock.now += 0.2
    assert await store.get(key(1)) is None
    assert (await store.stats()).entries == 0


async def test_the_last_put_wins_with_its_own_lifetime(make: Callable[[int, Clock], Store]) -> None:
    clock = Clock()
    store = make(1000, clock)
    await store.put(key(1), b"old", 5)
    await store.put(key(1), b"new", 50)
    clock.now += 10
    assert await store.get(key(1)) == b"new"
    stats = await store.stats()
    assert (stats.entries, stats.bytes, stats.evictions) == (1, 19, 0)


async def test_an_empty_value_is_a_value(make: Callable[[int, Clock], Store]) -> None:
    store = make(1000, Clock())
    await store.put(key(1), b"", 5)
    assert await store.get(key(1)) == b""


async def test_the_least_recently_used_goes_for_room(make: Callable[[int, Clock], Store]) -> None:
    store = make(3 * ENTRY_BYTES, Clock())
    for number in (1, 2, 3):
        await store.put(key(number), b"1234", 60)
    await store.get(key(1))
    await store.put(key(4), b"1234", 60)
    assert [await store.get(key(number)) for number in (1, 2, 3, 4)] == [b"1234", None, b"1234", b"1234"]
    stats = await store.stats()
    assert (stats.evictions, stats.bytes, stats.bytes_max) == (1, 3 * ENTRY_BYTES, 3 * ENTRY_BYTES)
    assert (stats.hits, stats.misses) == (4, 1)


async def test_expired_entries_make_room_before_live_ones(make: Callable[[int, Clock], Store]) -> None:
    clock = Clock()
    store = make(2 * ENTRY_BYTES, clock)
    await store.put(key(1), b"1234", 60)
    await store.put(key(2), b"1234", 1)
    clock.now += 2
    await store.put(key(3), b"1234", 60)
    assert await store.get(key(1)) == b"1234"
    assert (await store.stats()).evictions == 0


async def test_what_can_never_fit_is_not_stored_and_pushes_nothing_out(make: Callable[[int, Clock], Store]) -> None:
    store = make(ENTRY_BYTES, Clock())
    await store.put(key(1), b"1234", 60)
    assert not await store.put(key(2), bytes(ENTRY_BYTES), 60)
    assert await store.get(key(1)) == b"1234"
    assert not await store.put(key(1), bytes(ENTRY_BYTES), 60)
    assert await store.get(key(1)) is None, "an older value must not answer for the refused one"


async def test_delete_tells_whether_there_was_a_live_entry(make: Callable[[int, Clock], Store]) -> None:
    clock = Clock()
    store = make(1000, clock)
    await store.put(key(1), b"one", 60)
    assert await store.delete(key(1))
    assert not await store.delete(key(1))
    await store.put(key(2), b"two", 1)
    clock.now += 2
    assert not await store.delete(key(2))


_OPERATION = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 7), st.integers(0, 40), st.integers(1, 10)),
    st.tuples(st.just("delete"), st.integers(0, 7), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.integers(0, 5), st.just(0), st.just(0)),
)


@pytest.mark.parametrize("implementation", sorted(IMPLEMENTATIONS))
@given(st.lists(_OPERATION, max_size=40))
async def test_it_never_holds_more_than_its_bytes_nor_anything_stale(
    implementation: str, operations: list[tuple[str, int, int, int]]
) -> None:
    clock = Clock()
    store = IMPLEMENTATIONS[implementation](100, clock)
    model: dict[int, tuple[bytes, float]] = {}
    for serial, (verb, number, size, ttl_s) in enumerate(operations):
        if verb == "put":
            value = bytes([serial]) * size
            model.pop(number, None)
            if await store.put(key(number), value, ttl_s):
                model[number] = (value, clock.now + ttl_s)
        elif verb == "delete":
            await store.delete(key(number))
            model.pop(number, None)
        else:
            clock.now += number
        stats = await store.stats()
        assert stats.bytes <= 100
        for candidate in range(8):
            found = await store.get(key(candidate))
            if found is not None:
                value, until = model[candidate]
                assert (found, clock.now < until) == (value, True)
