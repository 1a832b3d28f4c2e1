"""All that the scheduler knows of prefix caches: the index and what feeds, extends and checks it. Pure.

`now` is the scheduler's clock at its last call.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.common.blocks import BLOCK_TOKENS, HASH_BYTES, split
from services.router.events import ResendBlocks, TrustChanged
from services.router.prefix.check import HitCheck
from services.router.prefix.feed import BlockStreamError, Feed
from services.router.prefix.index import PrefixIndex, holders
from services.router.prefix.match import Match
from services.router.prefix.promises import Promises

if TYPE_CHECKING:
    from services.router.events import Event
    from services.router.prefix.feed import BlockUpdate
    from services.router.requests import Lease, Request
    from services.router.workers import Worker

_HOLDERS_MAX = 128
"""Looked at per prompt, those with the longest match first; a thousand that hold the same system prompt are enough."""
_PROMISES_SHARE = 8
_PROMISE_S = 0.2


class _Cache:
    """One worker that reports its blocks."""

    __slots__ = ("check", "feed", "worker")

    def __init__(self, worker: Worker, feed: Feed, check: HitCheck) -> None:
        self.worker = worker
        self.feed = feed
        self.check = check


class PrefixTracker:
    """The prefix caches of all workers.

    Args:
        blocks_max: bound of the index, in 16-token blocks of all workers; an eighth as many may be promised.
        precision_min: a worker whose predictions come true less often is placed by load alone.
    """

    def __init__(self, blocks_max: int, precision_min: float, now: float) -> None:
        self.now = now
        self.index = PrefixIndex(blocks_max)
        self._promises = Promises(max(1, blocks_max // _PROMISES_SHARE))
        self._precision_min = precision_min
        self._caches: dict[Worker, _Cache] = {}
        self._by_holder: dict[int, _Cache] = {}

    def advance(self, now: float) -> None:
        """Turn the clock."""
        self.now = now
        self._promises.expire(now)

    def add(self, worker: Worker) -> None:
        """A worker registered; one that doesn't report blocks is left out."""
        info = worker.info
        if info.reports_blocks:
            feed = Feed(self.index, info.kv_blocks * info.block_size // BLOCK_TOKENS)
            cache = self._caches[worker] = _Cache(worker, feed, HitCheck(self._precision_min))
            self._by_holder[feed.holder] = cache

    def remove(self, worker: Worker) -> None:
        """It is gone."""
        cache = self._caches.pop(worker, None)
        if cache is not None:
            del self._by_holder[cache.feed.holder]
            cache.feed.close()

    def update(self, worker: Worker, update: BlockUpdate) -> list[Event]:
        """Take what its cache gained and lost.

        Raises:
            BlockStreamError: it broke the contract.
        """
        cache = self._caches.get(worker)
        if cache is None:
            raise BlockStreamError("block events of a worker that registered without `reports_blocks`")
        feed, holder = cache.feed, cache.feed.holder
        try:
            ask = feed.apply(update)
        finally:
            if feed.holder != holder:
                del self._by_holder[holder]
                self._by_holder[feed.holder] = cache
        return [ResendBlocks(worker.incarnation)] if ask else []

    def prepare(self, request: Request) -> None:
        """Look the prompt up for the first time."""
        if request.block_hashes and self._caches:
            request.match = Match(self, request)

    def look_up(self, request: Request) -> dict[Worker, int]:
        """Worker -> tokens predicted to be cached and worth counting on."""
        hits = {}
        for cache, blocks in self._holders(request):
            tokens = _usable(blocks, request.prompt_tokens, cache.worker.block_size)
            if tokens and cache.check.trusted:
                hits[cache.worker] = tokens
        return hits

    def granted(self, lease: Lease, ttft_s: float) -> None:
        """Expect the lease's blocks on its worker soon, and keep those that it counts on from eviction.

        Args:
            ttft_s: predicted.
        """
        cache = self._caches.get(lease.worker)
        hashes = lease.request.block_hashes
        if cache is None or not hashes:
            return
        if not cache.check.trusted:
            # Predict all the same: that is how trust comes back.
            blocks = next((blocks for other, blocks in self._holders(lease.request) if other is cache), 0)
            lease.matched_tokens = _usable(blocks, lease.request.prompt_tokens, lease.worker.block_size)
        at = lease.matched_tokens // BLOCK_TOKENS * HASH_BYTES
        if at:
            self.index.used(split(hashes[:at]))
        if not lease.matched_tokens:
            self._promises.add(cache.feed.holder, split(hashes[at:]), self.now + _PROMISE_S + ttft_s)

    def ended(self, lease: Lease, cached_tokens: int) -> list[Event]:
        """A lease finished: compare the prediction with what the engine says it reused."""
        cache = self._caches.get(lease.worker)
        if cache is None or not lease.request.block_hashes or not cache.check.add(lease.matched_tokens, cached_tokens):
            return []
        check = cache.check
        return [TrustChanged(lease.worker.incarnation, check.trusted, check.precision, check.recall)]

    def checks(self) -> list[tuple[Worker, HitCheck]]:
        """Of all workers that report blocks, to read only."""
        return [(cache.worker, cache.check) for cache in self._caches.values()]

    def _holders(self, request: Request) -> list[tuple[_Cache, int]]:
        """Who holds how many blocks of the prompt, most first."""
        found: list[tuple[_Cache, int]] = []
        levels = self.index.walk(split(request.block_hashes), self._promises.sets)
        for depth, bits in reversed(levels):
            for holder in holders(bits):
                found.append((self._by_holder[holder], depth))
                if len(found) == _HOLDERS_MAX:
                    return found
        return found


def _usable(blocks: int, prompt_tokens: int, block_size: int) -> int:
    """Whole blocks of the engine, and at least one token is left to compute: an engine needs one to sample from."""
    return max(0, min(blocks * BLOCK_TOKENS, prompt_tokens - 1)) // block_size * block_size
