"""Every implementation of `Store`, each with a hand on its time."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from services.cache.store import DiskStore, MemoryStore, RedisLink, RedisStore, Store, TieredStore
from tests.redis_server import needs_redis, redis_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

ANSWER_S_MAX = 5.0
"""Generous: nothing here is about Redis being late."""


@dataclass
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now

    async def advance(self, seconds: float) -> None:
        self.now += seconds


@dataclass
class Rig:
    """A started store."""

    store: Store
    advance: Callable[[float], Awaitable[None]]


@asynccontextmanager
async def started(store: Store) -> AsyncIterator[None]:
    """The store runs in this block."""
    keeper = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        owned = tasks.create_task(_own(store, keeper))
        try:
            await keeper.wait()
            yield
        finally:
            await store.close()
            owned.cancel()


async def _own(store: Store, ready: asyncio.Event) -> None:
    async with asyncio.TaskGroup() as tasks:
        await store.start(tasks)
        ready.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def memory(bytes_max: int, _: Path) -> AsyncIterator[Rig]:
    clock = Clock()
    store = MemoryStore(bytes_max, clock=clock)
    async with started(store):
        yield Rig(store, clock.advance)


@asynccontextmanager
async def disk(bytes_max: int, directory: Path) -> AsyncIterator[Rig]:
    clock = Clock()
    store = DiskStore(directory / "disk", bytes_max, overhead_bytes=0, clock=clock)
    async with started(store):
        yield Rig(store, clock.advance)


@asynccontextmanager
async def redis(_: int, directory: Path) -> AsyncIterator[Rig]:
    async with redis_server(directory) as server:
        store = RedisStore(RedisLink(server.url, timeout_s=ANSWER_S_MAX))
        async with started(store):
            yield Rig(store, server.pass_time)


@asynccontextmanager
async def tiered(bytes_max: int, directory: Path) -> AsyncIterator[Rig]:
    clock = Clock()
    async with redis_server(directory) as server:
        store = TieredStore(
            MemoryStore(bytes_max, clock=clock),
            RedisStore(RedisLink(server.url, timeout_s=ANSWER_S_MAX)),
            DiskStore(directory / "disk", bytes_max, overhead_bytes=0, clock=clock),
        )

        async def advance(seconds: float) -> None:
            await clock.advance(seconds)
            await server.pass_time(seconds)

        async with started(store):
            yield Rig(store, advance)


RIGS: dict[str, Callable[[int, Path], AbstractAsyncContextManager[Rig]]] = {
    "disk": disk, "memory": memory, "redis": redis, "tiered": tiered,
}  # fmt: skip
IMPLEMENTATIONS = [
    pytest.param(name, marks=needs_redis if name in ("redis", "tiered") else ()) for name in sorted(RIGS)
]
EXACT = ["disk", "memory"]
"""Those that count bytes themselves; Redis bounds itself, roughly."""
