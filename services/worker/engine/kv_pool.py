"""KV blocks of the simulator: a prefix cache of hashed full blocks with LRU eviction, as vLLM's block pool has it.

A block is *private* (being filled), *active* (full, hashed, held by one or more sequences) or *idle* (full, hashed,
held by none: still a cache hit, and the first to be evicted).
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from services.worker.engine.kv_delta import KvDelta

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class KvPool:
    """`capacity` blocks. Keys are hashes of a block and everything before it.

    `changes`: which keys became a cache hit, and which are none any more, since they were last taken.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.changes = KvDelta()
        self._private = 0
        self._active: dict[bytes, int] = {}
        self._idle: OrderedDict[bytes, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks that can be taken now, idle ones included."""
        return self.capacity - self._private - len(self._active)

    @property
    def used(self) -> int:
        """Blocks that hold something, idle ones included; never over the capacity."""
        return self._private + len(self._active) + len(self._idle)

    def match(self, keys: Sequence[bytes]) -> int:
        """How many of the leading `keys` are cached."""
        for i, key in enumerate(keys):
            if key not in self._active and key not in self._idle:
                return i
        return len(keys)

    def cost(self, keys: Sequence[bytes]) -> int:
        """How much `hold(keys)` takes from `free`."""
        return sum(key in self._idle for key in keys)

    def hold(self, keys: Iterable[bytes]) -> None:
        """Hold cached blocks for one more sequence."""
        for key in keys:
            if key in self._active:
                self._active[key] += 1
            else:
                del self._idle[key]
                self._active[key] = 1

    def take(self, count: int) -> None:
        """Make `count` (at most `free`) blocks private, evicting the longest idle ones where needed."""
        if count > self.free:
            raise MemoryError(f"{count} KV blocks asked for, {self.free} free")
        self._private += count
        while self.used > self.capacity:
            self.changes.remove(self._idle.popitem(last=False)[0])

    def publish(self, key: bytes) -> None:
        """A private block is full: others may find it now. Its twin, when there is one, is shared and it is freed."""
        self._private -= 1
        if key in self._active:
            self._active[key] += 1
        else:
            if key in self._idle:
                del self._idle[key]
            else:
                self.changes.store(key)
            self._active[key] = 1

    def release(self, keys: Sequence[bytes], private: int) -> None:
        """A sequence lets go of its published and private blocks. The end of a chain is evicted before its start."""
        self._private -= private
        for key in reversed(keys):
            left = self._active[key] - 1
            if left:
                self._active[key] = left
            else:
                del self._active[key]
                self._idle[key] = None
