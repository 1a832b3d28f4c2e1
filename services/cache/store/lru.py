"""Least recently used first out, with a lifetime and a cost per entry: what every bounded tier counts with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from cachetools import TLRUCache

if TYPE_CHECKING:
    from collections.abc import Callable


class Entry(Protocol):
    """What an entry has to tell."""

    @property
    def ttl_s(self) -> float:
        """Seconds that it lives, from when it is set."""

    @property
    def cost_bytes(self) -> int:
        """What it counts for."""


E = TypeVar("E", bound=Entry)


class Lru(TLRUCache[bytes, E]):
    """cachetools' LRU with lifetimes, which counts what it pushes out and tells of every entry that left by itself.

    Args:
        bytes_max: bound on the sum of all costs.
        clock: seconds.
        dropped: called with the key of each entry that expired or was pushed out.
    """

    def __init__(self, bytes_max: int, clock: Callable[[], float], dropped: Callable[[bytes], None]) -> None:
        super().__init__(
            bytes_max,
            ttu=lambda _, entry, now: now + entry.ttl_s,
            timer=clock,
            getsizeof=lambda entry: entry.cost_bytes,
        )
        self.evictions = 0
        self._dropped = dropped

    def popitem(self) -> tuple[bytes, E]:
        """Push out the least recently used entry: called by cachetools, after expired ones have gone."""
        key, entry = super().popitem()
        self.evictions += 1
        self._dropped(key)
        return key, entry

    def expire(self, time: float | None = None) -> Any:
        """Let go of entries whose time is over: called by cachetools before it makes room."""
        expired = list(super().expire(time))
        for key, _ in expired:
            self._dropped(key)
        return expired
