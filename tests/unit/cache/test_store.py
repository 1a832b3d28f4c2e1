"""The contract of a store, run against every implementation of the interface."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.cache.rigs import EXACT, IMPLEMENTATIONS, RIGS

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.cache.rigs import Rig

ENTRY_BYTES = 20
ROOM = 1000


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


@pytest.fixture(params=IMPLEMENTATIONS)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with RIGS[request.param](ROOM, tmp_path) as made:
        yield made


async def test_a_value_put_is_got_until_its_time_is_over(rig: Rig) -> None:
    store = rig.store
    assert await store.get(key(1)) is None
    assert await store.put(key(1), b"one", 100)
    await rig.advance(90)
    assert await store.get(key(1)) == b"one"
    await rig.advance(10.1)
    assert await store.get(key(1)) is None
    assert (await store.stats()).entries == 0


async def test_the_last_put_wins_with_its_own_lifetime(rig: Rig) -> None:
    store = rig.store
    await store.put(key(1), b"old", 50)
    await store.put(key(1), b"new", 500)
    await rig.advance(100)
    assert await store.get(key(1)) == b"new"
    assert (await store.stats()).entries == 1


async def test_an_empty_value_is_a_value(rig: Rig) -> None:
    await rig.store.put(key(1), b"", 50)
    assert await rig.store.get(key(1)) == b""


async def test_bytes_are_kept_as_they_are(rig: Rig) -> None:
    value = bytes(range(256))
    await rig.store.put(key(1), value, 50)
    assert await rig.store.get(key(1)) == value


async def test_delete_tells_whether_there_was_a_live_entry(rig: Rig) -> None:
    store = rig.store
    await store.put(key(1), b"one", 60)
    assert await store.delete(key(1))
    assert not await store.delete(key(1))
    assert await store.get(key(1)) is None
    await store.put(key(2), b"two", 10)
    await rig.advance(20)
    assert not await store.delete(key(2))


async def test_look_ups_are_counted(rig: Rig) -> None:
    store = rig.store
    await store.put(key(1), b"one", 60)
    for number in (1, 1, 2):
        await store.get(key(number))
    stats = await store.stats()
    assert (stats.hits, stats.misses, stats.failures) == (2, 1, 0)


@pytest.mark.parametrize("name", EXACT)
async def test_the_least_recently_used_goes_for_room(name: str, tmp_path: Path) -> None:
    async with RIGS[name](3 * ENTRY_BYTES, tmp_path) as rig:
        store = rig.store
        for number in (1, 2, 3):
            await store.put(key(number), b"1234", 60)
        await store.get(key(1))
        await store.put(key(4), b"1234", 60)
        assert [await store.get(key(number)) for number in (1, 2, 3, 4)] == [b"1234", None, b"1234", b"1234"]
        stats = await store.stats()
        assert (stats.evictions, stats.bytes, stats.bytes_max) == (1, 3 * ENTRY_BYTES, 3 * ENTRY_BYTES)


@pytest.mark.parametrize("name", EXACT)
async def test_an_entry_put_twice_counts_once(name: str, tmp_path: Path) -> None:
    async with RIGS[name](ROOM, tmp_path) as rig:
        await rig.store.put(key(1), b"older", 50)
        await rig.store.put(key(1), b"new", 50)
        stats = await rig.store.stats()
        assert (stats.entries, stats.bytes, stats.evictions) == (1, 19, 0)


@pytest.mark.parametrize("name", EXACT)
async def test_expired_entries_make_room_before_live_ones(name: str, tmp_path: Path) -> None:
    async with RIGS[name](2 * ENTRY_BYTES, tmp_path) as rig:
        store = rig.store
        await store.put(key(1), b"1234", 60)
        await store.put(key(2), b"1234", 1)
        await rig.advance(2)
        await store.put(key(3), b"1234", 60)
        assert await store.get(key(1)) == b"1234"
        assert (await store.stats()).evictions == 0


@pytest.mark.parametrize("name", EXACT)
async def test_what_can_never_fit_is_not_stored_and_pushes_nothing_out(name: str, tmp_path: Path) -> None:
    async with RIGS[name](ENTRY_BYTES, tmp_path) as rig:
        store = rig.store
        await store.put(key(1), b"1234", 60)
        assert not await store.put(key(2), bytes(ENTRY_BYTES), 60)
        assert await store.get(key(1)) == b"1234"
        assert not await store.put(key(1), bytes(ENTRY_BYTES), 60)
        assert await store.get(key(1)) is None, "an older value must not answer for the refused one"


_OPERATION = st.one_of(
    st.tuples(st.just("put"), st.integers(0, 7), st.integers(0, 40), st.integers(1, 10)),
    st.tuples(st.just("delete"), st.integers(0, 7), st.just(0), st.just(0)),
    st.tuples(st.just("wait"), st.integers(0, 5), st.just(0), st.just(0)),
)


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=50, deadline=None)
@given(operations=st.lists(_OPERATION, max_size=40))
async def test_it_never_holds_more_than_its_bytes_nor_anything_stale(
    name: str, operations: list[tuple[str, int, int, int]]
) -> None:
    model: dict[int, tuple[bytes, float]] = {}
    now = 0.0
    with tempfile.TemporaryDirectory() as directory:
        async with RIGS[name](100, Path(directory)) as rig:
            store = rig.store
            for serial, (verb, number, size, ttl_s) in enumerate(operations):
                if verb == "put":
                    value = bytes([serial]) * size
                    model.pop(number, None)
                    if await store.put(key(number), value, ttl_s):
                        model[number] = (value, now + ttl_s)
                elif verb == "delete":
                    await store.delete(key(number))
                    model.pop(number, None)
                else:
                    now += number
                    await rig.advance(number)
                assert (await store.stats()).bytes <= 100
                for candidate in range(8):
                    found = await store.get(key(candidate))
                    if found is not None:
                        assert (found, now < model[candidate][1]) == (model[candidate][0], True)
