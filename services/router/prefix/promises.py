"""Blocks that a worker will hold soon, because a prompt with them was just granted to it.

Without them a burst of one new prefix would spread over all workers and be computed on each. A promise ends by itself:
by then the worker has said that it holds the blocks, or it never will.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class Promises:
    """At most `blocks_max` promised blocks; beyond that, no more are promised until some end."""

    def __init__(self, blocks_max: int) -> None:
        self.sets: dict[bytes, int] = {}
        """Block -> set of holders, as in the index."""
        self._blocks_max = blocks_max
        self._ends: list[tuple[float, int, int, Sequence[bytes]]] = []
        self._order = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, holder: int, blocks: Sequence[bytes], until: float) -> None:
        """`holder` will hold these; forget it at `until`."""
        bit = 1 << holder
        if not blocks:
            return
        new = [block for block in blocks if not self.sets.get(block, 0) & bit]
        if not new or self._count + len(new) > self._blocks_max:
            return
        for block in new:
            self.sets[block] = self.sets.get(block, 0) | bit
        self._count += len(new)
        self._order += 1
        heapq.heappush(self._ends, (until, self._order, bit, new))

    def expire(self, now: float) -> None:
        """Forget those that are over."""
        ends = self._ends
        while ends and ends[0][0] <= now:
            _, _, bit, blocks = heapq.heappop(ends)
            self._count -= len(blocks)
            for block in blocks:
                left = self.sets[block] & ~bit
                if left:
                    self.sets[block] = left
                else:
                    del self.sets[block]
