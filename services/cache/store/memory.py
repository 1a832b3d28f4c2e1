"""The store inside this process: least recently used first out, bounded in bytes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from services.cache.store.base import StoreStats
from services.cache.store.lru import Lru

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable


class _Entry(NamedTuple):
    value: bytes
    ttl_s: float
    cost_bytes: int


class MemoryStore:
    """A `Store` in this process. Nothing of it survives a restart.

    Args:
        bytes_max: bound on the sum of key, value and `overhead_bytes` over all entries.
        overhead_bytes: what an entry costs beside its key and value.
        clock: seconds, monotonic.
    """

    name = "memory"
    up = True

    def __init__(self, bytes_max: int, *, overhead_bytes: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._overhead_bytes = overhead_bytes
        self._lru: Lru[_Entry] = Lru(bytes_max, clock, lambda _: None)
        self._hits = 0
        self._misses = 0

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """See `Store`: nothing to open."""

    async def get(self, key: bytes) -> bytes | None:
        """See `Store`."""
        entry = self._lru.get(key)
        if entry is None:
            self._misses += 1
            return None
        self._hits += 1
        return entry.value

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> bool:
        """See `Store`."""
        cost_bytes = len(key) + len(value) + self._overhead_bytes
        self._lru.pop(key, None)
        if cost_bytes > self._lru.maxsize:
            return False
        self._lru[key] = _Entry(value, ttl_s, cost_bytes)
        return True

    async def delete(self, key: bytes) -> bool:
        """See `Store`."""
        return self.forget(key)

    def forget(self, key: bytes) -> bool:
        """`delete`, at once."""
        return self._lru.pop(key, None) is not None

    def clear(self) -> None:
        """Forget everything."""
        self._lru.clear()

    async def stats(self) -> StoreStats:
        """See `Store`."""
        self._lru.expire()
        return StoreStats(
            entries=len(self._lru),
            bytes=int(self._lru.currsize),
            bytes_max=int(self._lru.maxsize),
            hits=self._hits,
            misses=self._misses,
            evictions=self._lru.evictions,
        )

    async def close(self) -> None:
        """See `Store`."""
        self._lru.clear()
