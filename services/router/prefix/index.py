"""Which workers hold which 16-token block: hash -> a set of workers, as the bits of one integer.

Walking a prompt's chain narrows a candidate set by one AND per block, whatever the number of workers. Pure, bounded:
at the bound the blocks go whose last store or use (of the granted) is the longest ago.

Memory is 64 bytes of hash, about 40 of hash table and next to nothing for the set per block: equal sets are one object.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_SHARDS = 256
"""By the first byte of the hash. Small enough to be swept one at a time between other work."""
_EVICT = 32
_SETS_MAX = 65_536
_RETIRED_MAX = 64
_TRACKED_FROM = 0.75
"""Fill at which the order of use begins to be kept: before that, nothing is near eviction."""


class PrefixIndex:
    """At most `blocks_max` blocks, each held by any number of holders.

    A holder is a small number (`open_holder`), a bit of the sets. Forgetting all that a holder has is immediate
    (`close_holder`); its bits are swept away later, a shard per `store`, and only then is its number used again.
    """

    def __init__(self, blocks_max: int) -> None:
        self.blocks_max = blocks_max
        self._shards: list[dict[bytes, int]] = [{} for _ in range(_SHARDS)]
        self._count = 0
        self._live = 0
        self._held: list[int] = []
        self._free: list[int] = []
        self._retired: list[int] = []
        self._sweeping: list[int] = []
        self._sweep_at = 0
        self._evict_at = 0
        self._sets: dict[int, int] = {}

    def __len__(self) -> int:
        return self._count

    def open_holder(self) -> int:
        """A number that holds nothing yet."""
        if not self._free and len(self._retired) + len(self._sweeping) >= _RETIRED_MAX:
            self._sweep_all()
        if self._free:
            holder = self._free.pop()
        else:
            holder = len(self._held)
            self._held.append(0)
        self._held[holder] = 0
        self._live |= 1 << holder
        return holder

    def close_holder(self, holder: int) -> None:
        """It holds nothing any more."""
        self._live &= ~(1 << holder)
        self._retired.append(holder)

    def held(self, holder: int) -> int:
        """How many indexed blocks it holds."""
        return self._held[holder]

    def store(self, holder: int, blocks: Iterable[bytes]) -> None:
        """It holds these too. Those it holds already are fine."""
        shards, bit, added, new = self._shards, self._set(1 << holder), 0, 0
        for block in blocks:
            shard = shards[block[0]]
            old = shard.get(block)
            if old is None:
                shard[block] = bit
                new += 1
                added += 1
            elif not old & bit:
                shard[block] = self._set(old | bit)
                added += 1
        self._held[holder] += added
        self._count += new
        while self._count > self.blocks_max:
            self._evict()
        self._sweep_some()

    def drop(self, holder: int, blocks: Iterable[bytes]) -> None:
        """It holds these no longer. Unknown ones are fine: they were evicted here before."""
        shards, bit, gone = self._shards, 1 << holder, 0
        for block in blocks:
            shard = shards[block[0]]
            old = shard.get(block, 0)
            if old & bit:
                gone += 1
                if old == bit:
                    del shard[block]
                    self._count -= 1
                else:
                    shard[block] = self._set(old ^ bit)
        self._held[holder] -= gone

    def used(self, blocks: Iterable[bytes]) -> None:
        """A grant counts on these: they are evicted last."""
        if self._count < self.blocks_max * _TRACKED_FROM:
            return
        for block in blocks:
            shard = self._shards[block[0]]
            bits = shard.pop(block, 0)
            if bits:
                shard[block] = bits

    def walk(self, chain: Sequence[bytes], promised: Mapping[bytes, int]) -> list[tuple[int, int]]:
        """Who holds how much of the chain's start: (blocks, set of holders), fewest first, holders of nothing left out.

        Args:
            promised: more sets by block, of blocks that are on their way.
        """
        shards, live, levels, depth = self._shards, self._live, list[tuple[int, int]](), 0
        last = -1
        for block in chain:
            bits = shards[block[0]].get(block, 0)
            more = promised.get(block)
            if more is not None:
                last, bits = -1, bits | more
            elif bits is last:  # equal sets are one object: nobody drops out here
                depth += 1
                continue
            else:
                last = bits
            left = live & bits
            if left != live:
                if depth:
                    levels.append((depth, live ^ left))
                if not left:
                    return levels
                live = left
            depth += 1
        if depth and live:
            levels.append((depth, live))
        return levels

    def _set(self, bits: int) -> int:
        """The one object that stands for this set."""
        known = self._sets.get(bits)
        if known is None:
            if len(self._sets) >= _SETS_MAX:
                self._sets.clear()
            known = self._sets[bits] = bits
        return known

    def _evict(self) -> None:
        """The oldest blocks of the next shard, a few more than needed."""
        shard = self._shards[self._evict_at]
        self._evict_at = (self._evict_at + 1) % _SHARDS
        for block in list(islice(shard, max(1, min(_EVICT, self.blocks_max // _SHARDS)))):
            for holder in holders(shard.pop(block) & self._live):
                self._held[holder] -= 1
            self._count -= 1

    def _sweep_some(self) -> None:
        if not self._sweeping:
            if not self._retired:
                return
            self._sweeping, self._retired, self._sweep_at = self._retired, [], 0
        self._sweep_shard(self._shards[self._sweep_at])
        self._sweep_at += 1
        if self._sweep_at == _SHARDS:
            self._free += self._sweeping
            self._sweeping = []

    def _sweep_all(self) -> None:
        while self._sweeping or self._retired:
            self._sweep_some()

    def _sweep_shard(self, shard: dict[bytes, int]) -> None:
        dead = sum(1 << holder for holder in self._sweeping)
        for block, bits in [item for item in shard.items() if item[1] & dead]:
            left = bits & ~dead
            if left:
                shard[block] = self._set(left)
            else:
                del shard[block]
                self._count -= 1


def holders(bits: int) -> Iterator[int]:
    """The members of a set."""
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low
