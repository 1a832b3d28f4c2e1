"""The store inside this process: least recently used first out, bounded in bytes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, NamedTuple

from cachetools import TLRUCache

from services.cache.store.base import StoreStats

if TYPE_CHECKING:
    from collections.abc import Callable


class _Entry(NamedTuple):
    value: bytes
    ttl_s: float
    cost_bytes: int


def _cost_bytes(entry: _Entry) -> int:
    return entry.cost_bytes


def _expires_at(_: bytes, entry: _Entry, now: float) -> float:
    return now + entry.ttl_s


class _Lru(TLRUCache[bytes, _Entry]):
    """cachetools' LRU with a lifetime per entry, which also counts what it pushes out for room."""

    evictions = 0

    def popitem(self) -> tuple[bytes, _Entry]:
        """Push out the least recently used entry: called by cachetools, after expired ones have gone."""
        self.evictions += 1
        return super().popitem()


class MemoryStore:
    """A `Store` in this process. Nothing of it survives a restart.

    Args:
        bytes_max: bound on the sum of key, value and `overhead_bytes` over all entries.
        overhead_bytes: what an entry costs beside its key and value.
        clock: seconds, monotonic.
    """

    name = "memory"

    def __init__(self, bytes_max: int, *, overhead_bytes: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self._overhead_bytes = overhead_bytes
        self._lru = _Lru(
            bytes_max,
            ttu=lambda _, entry, now: now + entry.ttl_s,
            timer=clock,
            getsizeof=lambda entry: entry.cost_bytes,
        )
        self._hits = 0
        self._misses = 0

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
        return self._lru.pop(key, None) is not None

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
