"""Who gives way: leases of lower classes that a waiting request of a higher class could use at once.

Only the gateway knows whether a first byte of a lease went out, so this is a question. The lowest class is asked first,
and in it the youngest lease, whose first byte is the farthest. A request asks twice at most, a lease is asked once.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from services.router.events import Event, Preempt

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.router.config import SchedulerConfig
    from services.router.pools import Pool
    from services.router.requests import Lease, Request
    from services.router.timers import Timers

_ASKS_MAX = 2
_LOOKED_AT = 16
"""Leases of a class that are looked at for one request."""


class Preemptions:
    """Questions under way, at most `preempts_max` per model."""

    def __init__(self, config: SchedulerConfig, timers: Timers) -> None:
        self._config = config
        self._timers = timers

    def seek(self, now: float, pool: Pool) -> Iterator[Event]:
        """Ask on behalf of those who wait first."""
        bands = pool.queue
        for band, lane in enumerate(bands.lanes[:-1]):
            if not lane.count or not any(bands.leases[band + 1 :]):
                continue
            for request, _ in islice(lane.walk(iter(())), self._config.preempts_max):
                if len(bands.asked) >= self._config.preempts_max:
                    return
                if request.asks >= _ASKS_MAX or (request.asking is not None and request.asking.id in bands.asked):
                    continue
                lease = self._victim(now, pool, request)
                if lease is None:
                    break
                self._ask(now, pool, request, lease)
                yield Preempt(lease.request.gateway, lease.id, lease.request.priority_class)

    def _ask(self, now: float, pool: Pool, request: Request, lease: Lease) -> None:
        request.asks += 1
        request.asking = lease
        lease.asked = True
        pool.queue.asked[lease.id] = lease
        self._timers.add(now + self._config.preempt_answer_s, partial(_unanswered, pool, lease))

    def _victim(self, now: float, pool: Pool, request: Request) -> Lease | None:
        bands, oldest = pool.queue, now - self._config.preempt_age_s
        missing = request.choices
        if kept := bands.kept_from(now, request.band):
            missing += kept - sum(worker.free_sequences for worker in pool.open.values())
        for band in range(len(bands.lanes) - 1, request.band, -1):
            above_floor = -bands.lacks(band)
            for lease in islice(reversed(bands.leases[band].values()), _LOOKED_AT):
                if lease.granted_at < oldest:
                    break
                enough = kept == 0 or lease.sequences >= missing
                if not lease.asked and enough and lease.sequences <= above_floor and self._fits(pool, lease, request):
                    return lease
        return None

    def _fits(self, pool: Pool, lease: Lease, request: Request) -> bool:
        """Whether the request fits on the lease's worker without it. A promoted lease doesn't give way again."""
        worker = lease.worker
        return (
            len(lease.accounts) == 1
            and worker.incarnation in pool.eligible
            and worker.incarnation not in request.excluded
            and not worker.bounced
            and worker.free_sequences + lease.sequences >= request.choices
            and worker.free_blocks + lease.blocks >= request.blocks(worker.block_size)
            and request.prompt_tokens + request.max_tokens <= worker.info.context_length
            and worker.backlog_ms - worker.slope_ms * lease.prefill_tokens <= self._config.backlog_ms_max
        )


def _unanswered(pool: Pool, lease: Lease, now: float, late_s: float) -> None:
    """As if refused: others may be asked."""
    if pool.queue.asked.get(lease.id) is lease:
        del pool.queue.asked[lease.id]
