"""Tiers as one store: this process, then Redis, then the disk. What is found below is copied up."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.cache.store.base import StoreStats

if TYPE_CHECKING:
    import asyncio

    from services.cache.store.base import Store
    from services.cache.store.disk import DiskStore
    from services.cache.store.memory import MemoryStore
    from services.cache.store.redis import RedisStore


class TieredStore:
    """A `Store` over others. Each has bounds of its own; one that is out of reach is passed over.

    A look-up that another write of the same key overtakes copies nothing up, so an old value never hides a new one.
    """

    def __init__(self, memory: MemoryStore, redis: RedisStore | None, disk: DiskStore | None) -> None:
        self._memory = memory
        self._redis = redis
        self._disk = disk
        self.tiers: list[Store] = [tier for tier in (memory, redis, disk) if tier is not None]
        self.name = "+".join(tier.name for tier in self.tiers)
        self._looking: dict[bytes, list[bool]] = {}
        """Keys looked up below now; True = written meanwhile."""
        self._hits = self._misses = 0

    @property
    def up(self) -> bool:
        """Every tier is within reach."""
        return all(tier.up for tier in self.tiers)

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """See `Store`."""
        for tier in self.tiers:
            await tier.start(tasks)

    async def get(self, key: bytes) -> bytes | None:
        """See `Store`."""
        value = await self._memory.get(key)
        if value is None:
            value = await self._from_below(key)
        if value is None:
            self._misses += 1
        else:
            self._hits += 1
        return value

    async def _from_below(self, key: bytes) -> bytes | None:
        overtaken = self._looking.setdefault(key, [False])
        try:
            for tier in (self._redis, self._disk):
                found = await tier.lookup(key) if tier is not None and (tier.up or tier is self._disk) else None
                if found is None:
                    continue
                if not overtaken[0]:
                    await self._memory.put(key, found.value, found.ttl_s)
                    if tier is self._disk and self._redis is not None and self._redis.up:
                        await self._redis.put(key, found.value, found.ttl_s, fill=True)
                return found.value
            return None
        finally:
            if self._looking.get(key) is overtaken:
                del self._looking[key]

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> bool:
        """See `Store`: kept by any tier is kept."""
        self._overtake(key)
        stored = [await tier.put(key, value, ttl_s) for tier in self.tiers]
        return any(stored)

    async def delete(self, key: bytes) -> bool:
        """See `Store`."""
        self._overtake(key)
        return any([await tier.delete(key) for tier in self.tiers])

    def forget(self, key: bytes) -> None:
        """Another service wrote `key` to Redis: our copies are old."""
        self._overtake(key)
        self._memory.forget(key)
        if self._disk is not None:
            self._disk.forget(key)

    def came_up(self, kept_data: bool) -> None:
        """Redis is there again. With its data: what others did to it meanwhile went unheard, so ask it anew."""
        if kept_data:
            self._memory.clear()

    def _overtake(self, key: bytes) -> None:
        looking = self._looking.pop(key, None)
        if looking is not None:
            looking[0] = True

    async def stats(self) -> StoreStats:
        """Fill of the first tier; look-ups and losses of all."""
        first = await self._memory.stats()
        return StoreStats(
            entries=first.entries,
            bytes=first.bytes,
            bytes_max=first.bytes_max,
            hits=self._hits,
            misses=self._misses,
            evictions=first.evictions,
        )

    async def close(self) -> None:
        """See `Store`."""
        for tier in self.tiers:
            await tier.close()
