"""One worker's stream of BlockEvents: sequence numbers, snapshots, gaps. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.prefix.index import PrefixIndex


class BlockStreamError(ValueError):
    """The worker broke the contract of BlockEvents: its stream should end."""


@dataclass(slots=True, frozen=True)
class BlockUpdate:
    """A BlockEvents message, its hashes split."""

    sequence: int
    snapshot_begin: bool = False
    snapshot_end: bool = False
    stored: Sequence[bytes] = ()
    removed: Sequence[bytes] = ()


class FeedState(Enum):
    """What the index knows of the worker."""

    AWAITING = "no snapshot yet, or lost the thread: updates are ignored until one begins"
    SNAPSHOT = "in the middle of one"
    FOLLOWING = "all that it holds"


class Feed:
    """Applies one worker's updates to the index.

    Args:
        blocks_max: 16-token blocks that its KV cache can hold at most.
    """

    __slots__ = ("_blocks_max", "_index", "_next", "gaps", "holder", "state")

    def __init__(self, index: PrefixIndex, blocks_max: int) -> None:
        self._index = index
        self._blocks_max = blocks_max
        self._next = 1
        self.gaps = 0
        self.holder = index.open_holder()
        self.state = FeedState.AWAITING

    def close(self) -> None:
        """The worker is gone."""
        self._index.close_holder(self.holder)

    def apply(self, update: BlockUpdate) -> bool:
        """Take one message; whether the worker must be asked to send a snapshot.

        A message that was seen before is ignored. After a gap all is forgotten, and what comes before the next
        snapshot is ignored.

        Raises:
            BlockStreamError: names what is wrong.
        """
        if update.sequence < 1:
            raise BlockStreamError("block events count from 1")
        if update.sequence < self._next:
            return False
        gap = update.sequence > self._next
        self._next = update.sequence + 1
        if gap:
            self.gaps += 1
            self._forget()
            self.state = FeedState.AWAITING
        if update.snapshot_begin:
            self._forget()
            self.state = FeedState.SNAPSHOT
        if self.state is not FeedState.AWAITING:
            self._take(update)
        return gap and self.state is FeedState.AWAITING

    def _take(self, update: BlockUpdate) -> None:
        self._index.store(self.holder, update.stored)
        self._index.drop(self.holder, update.removed)
        if self._index.held(self.holder) > self._blocks_max:
            raise BlockStreamError(
                f"more than the {self._blocks_max} blocks of 16 tokens that its registered KV cache can hold"
            )
        if update.snapshot_end:
            if self.state is not FeedState.SNAPSHOT:
                raise BlockStreamError("a snapshot ends that has not begun")
            self.state = FeedState.FOLLOWING

    def _forget(self) -> None:
        if self._index.held(self.holder):
            self._index.close_holder(self.holder)
            self.holder = self._index.open_holder()
