"""What a set of cached blocks gained and lost since somebody last asked, netted."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from services.worker.engine.base import KvChange

if TYPE_CHECKING:
    from collections.abc import Iterable


class KvDelta:
    """A block that came and went again leaves no trace, so this is never larger than what came to exist or did."""

    def __init__(self) -> None:
        self._stored: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}

    def __len__(self) -> int:
        """Blocks in it."""
        return len(self._stored) + len(self._removed)

    def store(self, block: bytes) -> None:
        """`block` was not there and is now."""
        if block in self._removed:
            del self._removed[block]
        else:
            self._stored[block] = None

    def remove(self, block: bytes) -> None:
        """`block` was there and is no more."""
        if block in self._stored:
            del self._stored[block]
        else:
            self._removed[block] = None

    def clear(self) -> None:
        """Forget it."""
        self._stored.clear()
        self._removed.clear()

    def take(self, blocks_max: int | None = None) -> KvChange:
        """All of it, or its next `blocks_max` blocks, removals first: so nobody ever counts more than there is."""
        removed = _take(self._removed, blocks_max)
        stored = _take(self._stored, None if blocks_max is None else blocks_max - len(removed))
        return KvChange(stored=stored, removed=removed)


def _take(blocks: dict[bytes, None], count: int | None) -> list[bytes]:
    taken: Iterable[bytes] = islice(blocks, count)
    out = list(taken)
    if len(out) == len(blocks):
        blocks.clear()
    else:
        for block in out:
            del blocks[block]
    return out
