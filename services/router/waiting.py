"""The waiting room: admits, queues, grants and rejects requests, and tells them where they stand."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from services.router.events import Event, Granted, Queued, Rejected, RejectReason
from services.router.placement import best
from services.router.search import next_fit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.router.config import SchedulerConfig
    from services.router.fleet import Fleet
    from services.router.ledger import Ledger
    from services.router.pools import Pool
    from services.router.requests import Request
    from services.router.timers import Timers
    from services.router.workers import Worker


class WaitingRoom:
    """All queues. Methods append to `events`; `touch`ed pools get their grants in `run`."""

    def __init__(self, config: SchedulerConfig, fleet: Fleet, ledger: Ledger, timers: Timers) -> None:
        self.events: list[Event] = []
        self.backlogged: dict[Pool, None] = {}
        """Pools in which somebody waits."""
        self._config = config
        self._fleet = fleet
        self._ledger = ledger
        self._timers = timers
        self._touched: dict[Pool, None] = {}
        self._entered: list[Request] = []
        self._positions_due = False

    def admit(self, now: float, pool: Pool, request: Request) -> None:
        """Grant a new request, let it wait, or reject it."""
        if not pool.queue:
            worker = best(request, pool.open.values())
            if worker is not None:
                self._grant(request, worker)
                return
        queue, config = pool.queue, self._config
        if not pool.could_ever_hold(request):
            self._reject_too_large(pool, request)
            return
        excess = queue.tokens + request.tokens - config.queue_tokens_max
        if len(queue) >= config.queue_requests_max or (len(queue) > 0 and excess > 0):
            detail = f"{len(queue)} requests of {queue.tokens} tokens wait for {pool.name!r} already"
            self.reject(request, RejectReason.QUEUE_FULL, detail, self.retry_after_s(now, pool, max(excess, 0)))
            return
        wait_s = pool.predicted_wait_s(now, queue.position(request) - 1)
        if now + wait_s > request.deadline:
            left = request.deadline - now
            detail = f"the deadline is in {left:.1f} s, a worker is free in about {wait_s:.1f} s"
            self.reject(request, RejectReason.DEADLINE, detail)
            return
        self._enter(now, pool, request)

    def readmit(self, now: float, pool: Pool, request: Request) -> None:
        """Back to its old place after it lost its lease. It was admitted once, so no bound refuses it."""
        if pool.could_ever_hold(request):
            self._enter(now, pool, request)
        else:
            self._reject_too_large(pool, request)

    def leave(self, now: float, request: Request) -> None:
        """Take a waiting request out of its queue."""
        pool = self._fleet.pools[request.model]
        pool.queue.remove(request)
        self._timers.cancel(request.deadline_timer)
        self._timers.cancel(request.orphan_timer)
        request.deadline_timer = request.orphan_timer = None
        self.touch((pool,))
        if not pool.queue:
            pool.rate.backlogged(now, False)
            del self.backlogged[pool]

    def reject(self, request: Request, reason: RejectReason, detail: str, retry_after_s: float = 0.0) -> None:
        """End a request that neither waits nor holds a lease."""
        self._ledger.close(request)
        self.events.append(Rejected(request.gateway, request.number, reason, retry_after_s, detail))

    def reject_waiting(self, now: float, pool: Pool, reason: RejectReason, detail: str) -> None:
        """End everybody who waits in the pool."""
        for request in list(pool.queue):
            self.leave(now, request)
            self.reject(request, reason, detail)

    def retry_after_s(self, now: float, pool: Pool, excess_tokens: int = 0) -> float:
        """When a refused request should come back; 0.0 = no honest figure, as while no worker drains the queue."""
        if not pool.eligible:
            return 0.0
        return pool.retry_after.next_place_s(now, pool.rate.per_s(now), len(pool.queue), excess_tokens)

    def touch(self, pools: Iterable[Pool]) -> None:
        """Room may have come, or an obstacle gone."""
        for pool in pools:
            if pool.queue:
                self._touched[pool] = None

    def recheck(self, now: float, pool: Pool) -> None:
        """The pool's workers changed: who can't be served any more, who can be again."""
        for request in list(pool.queue):
            if not pool.could_ever_hold(request):
                self.leave(now, request)
                self._reject_too_large(pool, request)
            else:
                self._watch_orphan(now, pool, request)

    def run(self, now: float) -> None:
        """Grant what fits in the touched pools, the oldest request first where pools share workers."""
        pools = [pool for pool in self._touched if pool.queue and pool.open]
        self._touched.clear()
        config = self._config
        while pools:
            pool = min(pools, key=lambda each: each.queue.oldest)
            fit = next_fit(pool, look_ahead=config.look_ahead, passes_max=config.passes_max)
            if fit is None:
                pools.remove(pool)
                continue
            request, worker = fit
            pool.rate.granted(now, request.tokens)
            self.leave(now, request)
            self._grant(request, worker)
            pools = [pool for pool in pools if pool.queue and pool.open]
        self._touched.clear()
        self._say_entered()

    def _enter(self, now: float, pool: Pool, request: Request) -> None:
        pool.queue.push(request)
        request.position_sent = 0
        self._entered.append(request)
        if pool not in self.backlogged:
            self.backlogged[pool] = None
            pool.rate.backlogged(now, True)
        if request.deadline < math.inf:
            action = partial(self._deadline_passed, request)
            request.deadline_timer = self._timers.add(request.deadline, action)
        self._watch_orphan(now, pool, request)
        self.touch((pool,))
        self._arm_positions(now)

    def _grant(self, request: Request, worker: Worker) -> None:
        lease = self._ledger.grant(request, worker)
        self._fleet.grant(lease)
        address = worker.info.address
        self.events.append(
            Granted(request.gateway, request.number, lease.id, address, worker.incarnation, lease.matched_tokens)
        )

    def _reject_too_large(self, pool: Pool, request: Request) -> None:
        detail = (
            f"{request.prompt_tokens} prompt tokens and {request.choices} x {request.max_tokens} answer tokens are"
            f" more than any worker of {pool.name!r} can hold"
        )
        self.reject(request, RejectReason.TOO_LARGE, detail)

    def _watch_orphan(self, now: float, pool: Pool, request: Request) -> None:
        """Start or stop the clock of a waiting request that no live worker could serve."""
        if pool.has_candidate(request):
            self._timers.cancel(request.orphan_timer)
            request.orphan_timer = None
        elif request.orphan_timer is None:
            due = now + self._config.no_worker_wait_s
            request.orphan_timer = self._timers.add(due, partial(self._orphaned, request))

    def _orphaned(self, request: Request, now: float, late_s: float) -> None:
        self.leave(now, request)
        wait_s = self._config.no_worker_wait_s
        detail = f"no worker for {request.model!r} came within {wait_s:g} s"
        self.reject(request, RejectReason.NO_WORKERS, detail)

    def _deadline_passed(self, request: Request, now: float, late_s: float) -> None:
        self.leave(now, request)
        self.reject(request, RejectReason.DEADLINE, "the deadline passed while the request waited for a worker")

    def _say_entered(self) -> None:
        entered, self._entered = self._entered, []
        for request in entered:
            if request.waiting and request.position_sent == 0:
                self._say_position(request, self._fleet.pools[request.model].queue.position(request))

    def _say_position(self, request: Request, position: int) -> None:
        request.position_sent = position
        self.events.append(Queued(request.gateway, request.number, position))

    def _arm_positions(self, now: float) -> None:
        if not self._positions_due:
            self._positions_due = True
            self._timers.add(now + self._config.position_interval_s, self._say_positions)

    def _say_positions(self, now: float, late_s: float) -> None:
        """Say positions that have halved or doubled since they were said: a few messages per request at most."""
        self._positions_due = False
        for pool in self.backlogged:
            for position, request in enumerate(pool.queue, 1):
                sent = request.position_sent
                if position * 2 <= sent or position >= sent * 2:
                    self._say_position(request, position)
        if self.backlogged:
            self._arm_positions(now)
