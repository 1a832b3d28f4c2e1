"""What is particular to the disk: restarts, torn files, its directory."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from services.cache.store import DiskStore
from tests.unit.cache.rigs import Clock, started

if TYPE_CHECKING:
    from pathlib import Path

KEYS = [number.to_bytes(16, "big") for number in range(8)]


def file_of(directory: Path, key: bytes) -> Path:
    return directory / key.hex()[:2] / key.hex()


async def fill(directory: Path, clock: Clock, *keys: bytes, ttl_s: float = 60) -> None:
    store = DiskStore(directory, 10_000, overhead_bytes=0, clock=clock)
    async with started(store):
        for key in keys:
            await store.put(key, b"value " + key, ttl_s)
            clock.now += 1


async def test_entries_survive_a_restart_with_what_is_left_of_their_time(tmp_path: Path) -> None:
    clock = Clock()
    await fill(tmp_path, clock, KEYS[0])
    again = DiskStore(tmp_path, 10_000, overhead_bytes=0, clock=clock)
    async with started(again):
        assert await again.get(KEYS[0]) == b"value " + KEYS[0]
        found = await again.lookup(KEYS[0])
        assert found is not None
        assert found.ttl_s == 59
        assert (await again.stats()).bytes == 38
        clock.now += 59
        assert await again.get(KEYS[0]) is None


async def test_a_smaller_bound_lets_the_least_recently_used_go_at_the_start(tmp_path: Path) -> None:
    clock = Clock()
    await fill(tmp_path, clock, *KEYS[:4])
    again = DiskStore(tmp_path, 2 * 38, overhead_bytes=0, clock=clock)
    async with started(again):
        assert [await again.get(key) is not None for key in KEYS[:4]] == [False, False, True, True]
    assert [file_of(tmp_path, key).exists() for key in KEYS[:4]] == [False, False, True, True]


async def test_files_of_expired_and_deleted_entries_go(tmp_path: Path) -> None:
    clock = Clock()
    store = DiskStore(tmp_path, 10_000, clock=clock)
    async with started(store):
        await store.put(KEYS[0], b"x", 5)
        await store.put(KEYS[1], b"x", 50)
        await store.put(KEYS[2], b"x", 50)
        clock.now += 6
        await store.delete(KEYS[1])
        await store.stats()
    assert [file_of(tmp_path, key).exists() for key in KEYS[:3]] == [False, False, True]


async def test_a_torn_file_is_a_miss_and_goes(tmp_path: Path) -> None:
    clock = Clock()
    await fill(tmp_path, clock, *KEYS[:4])
    damaged = file_of(tmp_path, KEYS[0])
    damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
    file_of(tmp_path, KEYS[1]).write_bytes(b"PSC1")
    file_of(tmp_path, KEYS[2]).write_bytes(file_of(tmp_path, KEYS[3]).read_bytes())
    for key in KEYS[:3]:
        os.utime(file_of(tmp_path, key), (clock.now, clock.now + 50))
    again = DiskStore(tmp_path, 10_000, overhead_bytes=0, clock=clock)
    async with started(again):
        assert [await again.get(key) for key in KEYS[:4]] == [None, None, None, b"value " + KEYS[3]]
        assert (await again.stats()).entries == 1
    assert not any(file_of(tmp_path, key).exists() for key in KEYS[:3])


async def test_a_file_that_somebody_removed_is_a_miss(tmp_path: Path) -> None:
    clock = Clock()
    await fill(tmp_path, clock, KEYS[0])
    again = DiskStore(tmp_path, 10_000, clock=clock)
    async with started(again):
        file_of(tmp_path, KEYS[0]).unlink()
        assert await again.get(KEYS[0]) is None
        assert await again.put(KEYS[0], b"new", 50)
        assert await again.get(KEYS[0]) == b"new"


async def test_drafts_go_at_the_start_and_strangers_stay(tmp_path: Path) -> None:
    clock = Clock()
    await fill(tmp_path, clock, KEYS[0])
    draft = file_of(tmp_path, KEYS[0]).with_suffix(".tmp")
    stranger = tmp_path / "notes.txt"
    for path in (draft, stranger):
        path.write_text("half")
    async with started(DiskStore(tmp_path, 10_000, clock=clock)):
        assert not draft.exists()
    assert stranger.exists()


async def test_a_disk_that_cannot_be_written_loses_entries_and_nothing_else(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 10_000)
    async with started(store):
        blocker = tmp_path / KEYS[0].hex()[:2]
        blocker.write_text("a file where a directory should be")
        await store.put(KEYS[0], b"x", 50)
    assert not store.up
    assert (await store.stats()).failures == 1


async def test_concurrent_readers_and_writers_see_whole_values(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, 1 << 20)
    values = [bytes([number]) * 10_000 for number in range(20)]

    async def write() -> None:
        for value in values:
            await store.put(KEYS[0], value, 60)
            await store.get(KEYS[0])

    async with started(store):
        await asyncio.gather(*(write() for _ in range(4)))
        assert await store.get(KEYS[0]) == values[-1]
    again = DiskStore(tmp_path, 1 << 20)
    async with started(again):
        assert await again.get(KEYS[0]) == values[-1]
