"""What is particular to Redis and to tiers over it: outages, several services, bounds."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from services.cache.leases import Leases
from services.cache.store import DiskStore, Down, MemoryStore, RedisLink, RedisStore, TieredStore
from services.cache.store.redis import RELEASED
from tests.redis_server import RedisServer, needs_redis, redis_server
from tests.unit.cache.rigs import ANSWER_S_MAX, started

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

pytestmark = needs_redis
KEYS = [number.to_bytes(16, "big") for number in range(512)]
LONG_S = 60.0


class Service:
    """Tiers and leases, wired as the service does."""

    def __init__(self, url: str, directory: Path | None = None) -> None:
        self.heard: asyncio.Queue[tuple[bytes, bytes]] = asyncio.Queue(1000)
        self.ups: asyncio.Queue[bool] = asyncio.Queue(100)
        self.redis = RedisStore(RedisLink(url, timeout_s=ANSWER_S_MAX), self._announced, self._came_up)
        self.memory = MemoryStore(1 << 24)
        disk = None if directory is None else DiskStore(directory, 1 << 24)
        self.store = TieredStore(self.memory, self.redis, disk)
        self.leases = Leases(self.redis, unreachable=Down)

    def _announced(self, kind: bytes, key: bytes) -> None:
        if kind == RELEASED:
            self.leases.released_elsewhere(key)
        else:
            self.store.forget(key)
            self.leases.fulfilled(key)
        self.heard.put_nowait((kind, key))

    def _came_up(self, kept_data: bool) -> None:
        self.store.came_up(kept_data)
        self.ups.put_nowait(kept_data)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[RedisServer]:
    async with redis_server(tmp_path) as made:
        yield made


@pytest.fixture
async def pair(server: RedisServer) -> AsyncIterator[tuple[Service, Service]]:
    """Two cache services on one Redis."""
    one, two = Service(server.url), Service(server.url)
    async with started(one.store), started(two.store):
        yield one, two


async def test_what_one_service_puts_the_other_gets(pair: tuple[Service, Service]) -> None:
    one, two = pair
    await one.store.put(KEYS[0], b"x", LONG_S)
    assert await two.store.get(KEYS[0]) == b"x"
    assert await two.memory.get(KEYS[0]) == b"x", "copied up"


async def test_what_one_service_overwrites_or_deletes_leaves_the_others_memory(pair: tuple[Service, Service]) -> None:
    one, two = pair
    await one.store.put(KEYS[0], b"old", LONG_S)
    assert await two.store.get(KEYS[0]) == b"old"
    await two.heard.get()
    await one.store.put(KEYS[0], b"new", LONG_S)
    await two.heard.get()
    assert await two.store.get(KEYS[0]) == b"new"
    assert await one.store.delete(KEYS[0])
    await two.heard.get()
    assert await two.store.get(KEYS[0]) is None
    assert one.heard.empty(), "its own announcements are not for itself"


async def test_a_look_up_overtaken_by_a_write_copies_nothing_up(server: RedisServer) -> None:
    service = Service(server.url)
    async with started(service.store):
        await service.redis.put(KEYS[0], b"old", LONG_S)
        looking = asyncio.ensure_future(service.store.get(KEYS[0]))
        await asyncio.sleep(0)
        service.store.forget(KEYS[0])
        assert await looking == b"old"
        assert await service.memory.get(KEYS[0]) is None


async def test_many_look_ups_share_pipelines(server: RedisServer) -> None:
    service = Service(server.url)
    async with started(service.store), server.client() as client:
        await service.redis.put(KEYS[0], b"x", LONG_S)
        before = (await client.info("stats"))["total_reads_processed"]
        assert await asyncio.gather(*(service.redis.get(KEYS[0]) for _ in range(400))) == [b"x"] * 400
        assert (await client.info("stats"))["total_reads_processed"] - before < 40


async def test_redis_killed_and_restarted_under_load_makes_misses_and_no_errors(server: RedisServer) -> None:
    service = Service(server.url)
    hits = misses = 0
    stop = asyncio.Event()

    async def load(keys: list[bytes]) -> None:
        nonlocal hits, misses
        while not stop.is_set():
            for key in keys:
                if await service.redis.get(key) is None:
                    misses += 1
                    await service.redis.put(key, b"x" * 1000, LONG_S)
                else:
                    hits += 1
                await asyncio.sleep(0)

    async with started(service.store):
        assert not await service.ups.get()
        async with asyncio.TaskGroup() as tasks:
            for number in range(8):
                tasks.create_task(load(KEYS[number * 8 : number * 8 + 8]))
            for _ in range(2):
                await server.kill()
                before = hits
                await server.start()
                await service.ups.get()
                async with asyncio.timeout(20):
                    while hits < before + 200:  # noqa: ASYNC110 - the load runs in between
                        await asyncio.sleep(0)
            stop.set()
        assert service.redis.up
        assert misses > 0
        assert (await service.redis.stats()).failures > 0


async def test_a_redis_that_does_not_answer_is_given_up_and_found_again(server: RedisServer) -> None:
    link = RedisLink(server.url, timeout_s=0.02)
    service = RedisStore(link)
    assert server.process is not None
    async with started(service):
        await service.put(KEYS[0], b"x", LONG_S)
        server.process.send_signal(19)  # SIGSTOP
        while service.up:
            assert await service.get(KEYS[0]) is None
        assert await service.get(KEYS[0]) is None
        server.process.send_signal(18)  # SIGCONT
        async with asyncio.timeout(20):
            while await service.get(KEYS[0]) is None:  # noqa: ASYNC110 - the link's task runs in between
                await asyncio.sleep(0)


async def test_a_service_starts_and_serves_without_its_redis(tmp_path: Path) -> None:
    service = Service("redis://127.0.0.1:1/0", tmp_path / "disk")
    async with started(service.store):
        assert not service.store.up
        assert await service.store.put(KEYS[0], b"x", LONG_S)
        service.memory.clear()
        assert await service.store.get(KEYS[0]) == b"x", "from the disk"
        assert await service.leases.acquire(KEYS[0], b"a", 5)
        assert not await service.leases.acquire(KEYS[0], b"b", 5)


async def test_what_was_written_while_redis_was_out_of_reach_is_not_undone_by_it(tmp_path: Path) -> None:
    async with redis_server(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as server:
        service = Service(server.url)
        async with started(service.store):
            await service.ups.get()
            for key in KEYS[:3]:
                await service.store.put(key, b"old", LONG_S)
            await server.kill()
            while service.redis.up:
                await service.redis.get(KEYS[9])
            await service.store.put(KEYS[0], b"new", LONG_S)
            await service.store.delete(KEYS[1])
            assert await service.store.get(KEYS[0]) == b"new"
            await server.start()
            assert await service.ups.get(), "it kept its data"
            assert [await service.store.get(key) for key in KEYS[:3]] == [None, None, b"old"]


async def test_the_disk_fills_an_empty_redis_again(server: RedisServer, tmp_path: Path) -> None:
    service = Service(server.url, tmp_path / "disk")
    async with started(service.store), server.client() as client:
        await service.store.put(KEYS[0], b"x", LONG_S)
        await client.flushall()
        service.memory.clear()
        assert await service.store.get(KEYS[0]) == b"x"
        assert await service.redis.get(KEYS[0]) == b"x"


async def test_redis_bounds_itself(tmp_path: Path) -> None:
    async with redis_server(tmp_path, "--maxmemory", "6mb", "--maxmemory-policy", "allkeys-lru") as server:
        service = Service(server.url)
        async with started(service.store):
            for key in KEYS:
                await service.redis.put(key, bytes(32 * 1024), LONG_S)
            stats = await service.redis.stats()
            assert stats.bytes_max == 6 * 1024 * 1024
            assert stats.evictions > 0
            assert stats.entries < len(KEYS)
            assert await service.redis.get(KEYS[-1]) == bytes(32 * 1024)


async def test_a_full_redis_that_evicts_nothing_refuses_without_being_down(tmp_path: Path) -> None:
    async with redis_server(tmp_path, "--maxmemory", "1mb", "--maxmemory-policy", "noeviction") as server:
        service = Service(server.url)
        async with started(service.store):
            assert not await service.redis.put(KEYS[0], bytes(2_000_000), LONG_S)
            assert service.redis.up
            assert await service.store.put(KEYS[0], bytes(2_000_000), LONG_S), "memory has it"


async def test_one_leads_in_all_services(pair: tuple[Service, Service]) -> None:
    one, two = pair
    assert await one.leases.acquire(KEYS[0], b"a", LONG_S)
    assert not await two.leases.acquire(KEYS[0], b"b", LONG_S)
    waiting = asyncio.ensure_future(two.leases.wait(KEYS[0], two.leases._clock() + LONG_S))
    await one.leases.release(KEYS[0], b"a")
    assert await waiting
    assert await two.leases.acquire(KEYS[0], b"b", LONG_S)
    assert not await one.leases.acquire(KEYS[0], b"a", LONG_S)


async def test_a_value_ends_the_wait_in_all_services(pair: tuple[Service, Service]) -> None:
    one, two = pair
    await one.leases.acquire(KEYS[0], b"a", LONG_S)
    await two.leases.acquire(KEYS[0], b"b", LONG_S)
    waiting = asyncio.ensure_future(two.leases.wait(KEYS[0], two.leases._clock() + LONG_S))
    await one.store.put(KEYS[0], b"x", LONG_S)
    assert await waiting
    assert await two.store.get(KEYS[0]) == b"x"
    assert await two.leases.acquire(KEYS[0], b"b", LONG_S), "no lease is left"


async def test_a_lease_that_is_renewed_here_holds_there(pair: tuple[Service, Service], server: RedisServer) -> None:
    one, two = pair
    await one.leases.acquire(KEYS[0], b"a", 30)
    await server.pass_time(20)
    await one.leases.renew([(KEYS[0], b"a")], 30)
    await server.pass_time(20)
    assert not await two.leases.acquire(KEYS[0], b"b", 30)


async def test_connections_are_gone_after_close(server: RedisServer) -> None:
    async with AsyncExitStack() as stack:
        service = Service(server.url)
        await stack.enter_async_context(started(service.store))
        await service.store.put(KEYS[0], b"x", LONG_S)
    async with server.client() as client:
        assert len(await client.client_list()) == 1
