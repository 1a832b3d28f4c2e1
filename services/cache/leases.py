"""Who makes the value of a key while others wait for it: cache stampede protection.

A lease is led by one owner, in this service and, with Redis, in all of them. It ends when the value is put, when its
owner lets go, or by itself when the owner renews it no more; then the one who waits longest leads. Nothing breaks
without it: whoever can't wait makes the value too.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

LEASES_MAX = 65_536
WAITERS_MAX = 16_384


class RemoteLeases(Protocol):
    """Leases that all cache services share."""

    @property
    def up(self) -> bool:
        """Whether it can be asked."""

    async def lease(self, key: bytes, owner: bytes, lease_ms: int) -> tuple[bool, int]:
        """Whether it is `owner`'s now, and the ms after which it ends. Raises `Unreachable`."""

    async def renew(self, leases: list[tuple[bytes, bytes]], lease_ms: int) -> int:
        """Prolong what still is its owner's; how many."""

    async def release(self, key: bytes, owner: bytes) -> None:
        """End it."""


@dataclass(slots=True)
class _Lease:
    owner: bytes | None = None
    """None = led through another service, or by nobody."""
    until: float = 0.0
    waiters: deque[asyncio.Future[None]] = field(default_factory=deque)


class Leases:
    """All leases of this service.

    Args:
        remote: shared by all services; None = this is the only one.
        unreachable: the error by which `remote` says that it can't be asked.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        remote: RemoteLeases | None = None,
        *,
        unreachable: type[Exception] = OSError,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._remote = remote
        self._unreachable = unreachable
        self._clock = clock
        self._leases: dict[bytes, _Lease] = {}
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._leases)

    async def acquire(self, key: bytes, owner: bytes, lease_s: float) -> bool:
        """Whether `owner` leads now. With the table full everybody does."""
        lease = self._leases.get(key)
        if lease is None:
            if not self._room():
                return True
            lease = self._leases[key] = _Lease()
        elif lease.until > self._clock() and lease.owner != owner:
            return False
        lease.owner, lease.until = owner, self._clock() + lease_s  # before any await: one at a time asks Redis
        if self._remote is None or not self._remote.up:
            return True
        try:
            mine, left_ms = await self._remote.lease(key, owner, int(lease_s * 1000))
        except self._unreachable:
            return True
        except asyncio.CancelledError:
            self._free(key, owner)
            raise
        if not mine and self._leases.get(key) is lease and lease.owner == owner:
            lease.owner, lease.until = None, self._clock() + left_ms / 1000
        return mine

    async def wait(self, key: bytes, deadline: float) -> bool:
        """Until the lease of `key` has ended in one way or another; False at the deadline, or with too many waiting."""
        lease = self._leases.get(key)
        if lease is None or lease.until <= self._clock():
            return True
        if self._waiting >= WAITERS_MAX:
            return False
        freed = asyncio.get_running_loop().create_future()
        lease.waiters.append(freed)
        self._waiting += 1
        left = False
        try:
            left_s = max(0.0, min(deadline, lease.until) - self._clock())
            await asyncio.wait({freed}, timeout=left_s)
            left = self._clock() >= deadline
            return not left
        except asyncio.CancelledError:
            left = True
            raise
        finally:
            self._waiting -= 1
            self._leave(key, lease, freed, passes_on=left)

    def _leave(self, key: bytes, lease: _Lease, freed: asyncio.Future[None], *, passes_on: bool) -> None:
        if not freed.done():
            freed.cancel()
            if freed in lease.waiters:
                lease.waiters.remove(freed)
        elif passes_on:  # woken to lead, but it is leaving
            _wake_next(lease)
        self._drop_if_idle(key, lease)

    async def renew(self, leases: list[tuple[bytes, bytes]], lease_s: float) -> int:
        """Prolong what still is its owner's; how many."""
        now = self._clock()
        mine = []
        for key, owner in leases:
            lease = self._leases.get(key)
            if lease is not None and lease.owner == owner:
                lease.until = now + lease_s
                mine.append((key, owner))
        if mine and self._remote is not None and self._remote.up:
            await self._remote.renew(mine, int(lease_s * 1000))
        return len(mine)

    async def release(self, key: bytes, owner: bytes) -> bool:
        """The owner lets go without a value: the next leads. Whether it was the owner."""
        released = self._free(key, owner)
        if self._remote is not None and self._remote.up:
            await self._remote.release(key, owner)
        return released

    def _free(self, key: bytes, owner: bytes) -> bool:
        lease = self._leases.get(key)
        if lease is None or lease.owner != owner:
            return False
        lease.owner, lease.until = None, 0.0
        _wake_next(lease)
        self._drop_if_idle(key, lease)
        return True

    def released_elsewhere(self, key: bytes) -> None:
        """Another service's owner let go."""
        lease = self._leases.get(key)
        if lease is not None and lease.owner is None:
            lease.until = 0.0
            _wake_next(lease)
            self._drop_if_idle(key, lease)

    def fulfilled(self, key: bytes) -> None:
        """The value is there: nobody waits any longer."""
        lease = self._leases.pop(key, None)
        while lease is not None and lease.waiters:
            _wake_next(lease)

    def _drop_if_idle(self, key: bytes, lease: _Lease) -> None:
        if not lease.waiters and lease.until <= self._clock() and self._leases.get(key) is lease:
            del self._leases[key]

    def _room(self) -> bool:
        if len(self._leases) >= LEASES_MAX:
            now = self._clock()
            for key in [key for key, lease in self._leases.items() if lease.until <= now and not lease.waiters]:
                del self._leases[key]
        return len(self._leases) < LEASES_MAX


def _wake_next(lease: _Lease) -> None:
    while lease.waiters:
        waiter = lease.waiters.popleft()
        if not waiter.done():
            waiter.set_result(None)
            return
