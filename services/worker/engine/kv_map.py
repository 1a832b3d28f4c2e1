"""From an engine's own prefix blocks to ours. Pure, and needs no vLLM.

An engine names its blocks (a multiple of 16 tokens) by hashes of its own, says what is in a block when it is stored,
and only the hash when it is removed. So the map from its hashes to ours lives here, as large as the engine's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.common.blocks import BLOCK_TOKENS, HASH_BYTES, chain, root, split
from services.worker.engine.kv_delta import KvDelta

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.worker.engine.base import KvChange

EngineHash = int | bytes


@dataclass(slots=True)
class Stored:
    """The engine stored blocks that follow each other."""

    hashes: Sequence[EngineHash]
    parent: EngineHash | None
    """The block before the first; None = they begin a prompt."""
    tokens: Sequence[int]
    """Of all the blocks, one after the other."""
    block_size: int
    lora: str = ""
    salt: str = ""
    """Given only where `parent` is None: the blocks after inherit it."""


@dataclass(slots=True)
class _Block:
    ours: bytes
    copies: int


class KvMap:
    """Follows an engine's events.

    Args:
        version: `CardMeta.version`.
        blocks_max: blocks that the engine's cache has.
    """

    def __init__(self, version: str, blocks_max: int) -> None:
        self._version = version
        self._blocks_max = blocks_max
        self._blocks: dict[EngineHash, _Block] = {}
        self._delta = KvDelta()
        self._void = False
        self.unknown = 0
        """Blocks that could not be named: their parent isn't known, or they hold more than tokens."""

    def __len__(self) -> int:
        """Blocks of the engine that are known."""
        return len(self._blocks)

    def stored(self, event: Stored) -> None:
        """Blocks are there. The engine may hold several copies of one; it is gone when the last is."""
        size, count = event.block_size, len(event.hashes)
        if size < BLOCK_TOKENS or size % BLOCK_TOKENS or len(event.tokens) != size * count:
            self.unknown += count
            return
        parent = self._parent(event)
        if parent is None:
            self.unknown += count
            return
        ours = chain(parent, event.tokens)
        step = size // BLOCK_TOKENS * HASH_BYTES
        for at, name in enumerate(event.hashes):
            self._store(name, ours[at * step : (at + 1) * step])
        if len(self._blocks) > self._blocks_max:
            self.clear()  # removals were lost: better to know nothing than what isn't so

    def removed(self, hashes: Sequence[EngineHash]) -> None:
        """One copy of each block is gone; unknown ones are ignored."""
        for name in hashes:
            block = self._blocks.get(name)
            if block is None:
                continue
            block.copies -= 1
            if not block.copies:
                del self._blocks[name]
                for each in split(block.ours):
                    self._delta.remove(each)

    def clear(self) -> None:
        """Nothing is there, or nothing is known: what follows is told from empty."""
        self._blocks.clear()
        self._delta.clear()
        self._void = True

    def take(self) -> KvChange:
        """What changed since the last call; a snapshot after `clear`."""
        change = self._delta.take()
        change.snapshot, self._void = self._void, False
        return change

    def _parent(self, event: Stored) -> bytes | None:
        """The hash that ours begin with; None = unknown."""
        if event.parent is None:
            return root(self._version, event.lora, event.salt)
        before = self._blocks.get(event.parent)
        return None if before is None else before.ours[-HASH_BYTES:]

    def _store(self, name: EngineHash, ours: bytes) -> None:
        known = self._blocks.get(name)
        if known is not None:
            known.copies += 1
            return
        self._blocks[name] = _Block(ours, copies=1)
        for each in split(ours):
            self._delta.store(each)
