"""Tells routers what this worker's prefix cache holds: a copy of it, and what each stream has not been told yet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from penstock.v1 import registry_pb2

from services.common.blocks import HASH_BYTES
from services.worker.engine.kv_delta import KvDelta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.worker.engine.base import KvChange

BATCH_S = 0.05
"""Changes leave at most so often, and at once after a quiet time."""
PIECE_BLOCKS = 16_384
"""Blocks in one message, 256 KiB."""
BACKLOG_BLOCKS_MAX = 65_536
"""A stream that is owed more changes than this gets a snapshot instead."""


class BlockMirror:
    """The blocks that the engine holds, by its events."""

    def __init__(self) -> None:
        self._held: dict[bytes, None] = {}

    @property
    def held(self) -> Mapping[bytes, None]:
        """Hashes of all of them."""
        return self._held

    def apply(self, change: KvChange) -> KvChange:
        """Take a change; what it really changed (after a snapshot: the snapshot)."""
        if change.snapshot:
            self._held = dict.fromkeys(change.stored)
            return change
        held = self._held
        change.stored = [block for block in change.stored if block not in held]
        held.update(dict.fromkeys(change.stored))
        change.removed = [block for block in change.removed if block in held]
        for block in change.removed:
            del held[block]
        return change


class BlockFeed:
    """What one stream has not been told yet; begins with a snapshot."""

    def __init__(self, mirror: BlockMirror) -> None:
        self._mirror = mirror
        self._delta = KvDelta()
        self._snapshot_wanted = True
        self._snapshot = b""
        self._at = 0  # of what is left of the snapshot
        self._sequence = 0
        self._last = -math.inf

    @property
    def due_at(self) -> float:
        """When the next message may leave; infinity when there is none."""
        if self._snapshot_wanted or self._snapshot:
            return -math.inf
        return self._last + BATCH_S if len(self._delta) else math.inf

    def changed(self, change: KvChange) -> None:
        """The mirror changed so."""
        if change.snapshot:
            self.resend()
        if self._snapshot_wanted:
            return  # which will say it
        for block in change.stored:
            self._delta.store(block)
        for block in change.removed:
            self._delta.remove(block)
        if len(self._delta) > BACKLOG_BLOCKS_MAX:
            self.resend()

    def resend(self) -> None:
        """Begin again with a snapshot."""
        self._snapshot_wanted = True
        self._snapshot, self._at = b"", 0
        self._delta.clear()

    def message(self, now: float) -> registry_pb2.BlockEvents:
        """The next message."""
        self._last = now
        self._sequence += 1
        begins = self._snapshot_wanted
        if begins:
            self._snapshot_wanted = False
            self._snapshot = b"".join(self._mirror.held)
        if not (begins or self._snapshot):
            change = self._delta.take(PIECE_BLOCKS)
            return registry_pb2.BlockEvents(
                sequence=self._sequence, stored=b"".join(change.stored), removed=b"".join(change.removed)
            )
        end = self._at + PIECE_BLOCKS * HASH_BYTES
        piece, ends = self._snapshot[self._at : end], end >= len(self._snapshot)
        self._at = 0 if ends else end
        if ends:
            self._snapshot = b""
        return registry_pb2.BlockEvents(sequence=self._sequence, snapshot_begin=begins, snapshot_end=ends, stored=piece)
