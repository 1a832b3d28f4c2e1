"""The interface of a store. Callers have checked keys, sizes and lifetimes; a store only keeps and forgets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio


@dataclass(frozen=True, slots=True)
class StoreStats:
    """How full a store is, and how well it did since its start."""

    entries: int
    bytes: int
    bytes_max: int
    """0 = unknown, or bounded by nobody."""
    hits: int
    misses: int
    evictions: int
    """Entries that had to go for room; expired and deleted ones don't count."""
    failures: int = 0
    """Look-ups and writes that it could not serve."""


@dataclass(frozen=True, slots=True)
class Found:
    """A live value of a lower tier, with what is left of its lifetime for the tiers above."""

    value: bytes
    ttl_s: float


class Store(Protocol):
    """Bytes by key, each with a lifetime, bounded in bytes.

    An entry may vanish at any time; it never comes back with another value than the last one put.
    """

    @property
    def name(self) -> str:
        """What it is, for people: `memory`."""

    @property
    def up(self) -> bool:
        """Whether it can serve now. One that can't answers with misses, never with an error."""

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """Open it; what it does in the background lives in `tasks`."""

    async def get(self, key: bytes) -> bytes | None:
        """The value last put under `key`, or None when there is none or its time is over."""

    async def put(self, key: bytes, value: bytes, ttl_s: float) -> bool:
        """Keep `value` for `ttl_s` seconds, in place of any older one; False when it does not fit at all."""

    async def delete(self, key: bytes) -> bool:
        """Forget `key`; whether there was a live entry."""

    async def stats(self) -> StoreStats:
        """Fill and hit counts."""

    async def close(self) -> None:
        """Let go of connections and memory."""
