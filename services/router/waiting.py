"""The waiting room: admits, queues, grants and rejects requests, and tells them where they stand."""

from __future__ import annotations

import math
from functools import partial
from typing import TYPE_CHECKING

from services.router.events import Event, Granted, Queued, Rejected, RejectReason
from services.router.lane import cost_of
from services.router.placement import best, let_go
from services.router.preemption import Preemptions
from services.router.search import next_fit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.router.config import SchedulerConfig
    from services.router.fleet import Fleet
    from services.router.lane import Turn
    from services.router.ledger import Ledger
    from services.router.pools import Pool
    from services.router.requests import Lease, Request, Usage
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
        self._preemptions = Preemptions(config, timers)

    def admit(self, now: float, pool: Pool, request: Request) -> None:
        """Grant a new request, let it wait, or reject it."""
        bands, lane = pool.queue, pool.queue.lanes[request.band]
        lane.asked(now)
        pool.measure(now, request)
        if bands.goes_at_once(now, request.band):
            worker = self._fitting(now, pool, request)
            if worker is not None:
                account = lane.accounts.of(request)
                lane.accounts.lift(account)
                self._grant(now, pool, (request, (account,)), worker)
                return
        if not pool.could_ever_hold(request):
            self._reject_too_large(pool, request)
            return
        excess = lane.has_no_place(request)
        if excess is not None:
            detail = f"{lane.count} requests of {lane.tokens} tokens wait for {pool.name!r} in this class already"
            self.reject(request, RejectReason.QUEUE_FULL, detail, self.retry_after_s(now, pool, request.band, excess))
            return
        if request.deadline < math.inf and not self._in_time(now, pool, request):
            return
        self._enter(now, pool, request)

    def _fitting(self, now: float, pool: Pool, request: Request) -> Worker | None:
        """The worker for a request whose turn it is, if there is room."""
        spare = pool.queue.spare(now, request.band, pool.open.values())
        if spare is not None and request.choices > spare:
            return None
        return best(
            request,
            pool.open.values(),
            backlog_ms=self._config.backlog_ms_max,
            keep=pool.kept_from(now, request),
        )

    def _in_time(self, now: float, pool: Pool, request: Request) -> bool:
        """Refuse the request if its deadline can't be met."""
        wait_s = self._predicted_wait_s(now, pool, request)
        ttft_s = pool.predicted_ttft_s(request)
        if now + wait_s + ttft_s <= request.deadline:
            return True
        left = request.deadline - now
        detail = (
            f"the deadline is in {left:.1f} s; a worker is free in about {wait_s:.1f} s,"
            f" the first token {ttft_s:.1f} s later"
        )
        self.reject(request, RejectReason.DEADLINE, detail)
        return False

    def _predicted_wait_s(self, now: float, pool: Pool, request: Request) -> float:
        """Until it has left the queue; 0.0 while the rate of its class is not well known."""
        lane = pool.queue.lanes[request.band]
        if not lane.count or not lane.rate.confident(now):
            return 0.0
        return (lane.ahead(request) + 1) / lane.rate.per_s(now)[0]

    def readmit(self, now: float, pool: Pool, request: Request) -> None:
        """Back to its old place after it lost its lease. It was admitted once, so no bound refuses it."""
        if pool.could_ever_hold(request):
            self._enter(now, pool, request)
        else:
            self._reject_too_large(pool, request)

    def leave(self, now: float, request: Request) -> None:
        """Take a waiting request out of its queue."""
        pool = self._fleet.pools[request.model]
        lane = pool.queue.lanes[request.band]
        lane.remove(request)
        let_go(request)
        self._timers.cancel(request.deadline_timer)
        self._timers.cancel(request.orphan_timer)
        request.deadline_timer = request.orphan_timer = None
        self.touch((pool,))
        if not lane.count:
            lane.rate.backlogged(now, False)
        if not pool.queue:
            del self.backlogged[pool]

    def reject(self, request: Request, reason: RejectReason, detail: str, retry_after_s: float = 0.0) -> None:
        """End a request that neither waits nor holds a lease."""
        self._ledger.close(request)
        event = Rejected(request.gateway, request.number, reason, retry_after_s, detail, request.priority_class)
        self.events.append(event)

    def reject_waiting(self, now: float, pool: Pool, reason: RejectReason, detail: str) -> None:
        """End everybody who waits in the pool."""
        for request in list(pool.queue):
            self.leave(now, request)
            self.reject(request, reason, detail)

    def over(self, lease: Lease, usage: Usage | None = None, *, returned: bool = False) -> None:
        """A lease is over: correct what its accounts were charged by what it came to, or pay it back if `returned`."""
        request = lease.request
        self._fleet.pools[request.model].queue.unhold(lease)
        delta = 0.0
        if returned:
            delta = -lease.cost
        elif usage is not None:
            uncached = request.prompt_tokens - usage.cached_tokens
            delta = cost_of(self._config, uncached, usage.completion_tokens) - lease.cost
        for account in lease.accounts:
            account.book.correct(account, delta)
        own = lease.accounts[0]
        own.leases -= 1
        own.book.settle(own)

    def retry_after_s(self, now: float, pool: Pool, band: int, excess_tokens: int = 0) -> float:
        """When a refused request should come back; 0.0 = no honest figure, as while no worker drains the queue."""
        if not pool.eligible:
            return 0.0
        lane = pool.queue.lanes[band]
        return lane.retry_after.next_place_s(now, lane.rate.per_s(now), lane.count, excess_tokens)

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
        """Grant what fits in the touched pools, the most urgent request first where pools share workers."""
        touched = [pool for pool in self._touched if pool.queue]
        self._touched.clear()
        pools = [pool for pool in touched if pool.open]
        while pools:
            pool = pools[0] if len(pools) == 1 else min(pools, key=partial(_urgency, now))
            fit = next_fit(pool, self._config, now)
            if fit is None:
                pools.remove(pool)
                continue
            worker, turn = fit
            request = turn[0]
            pool.queue.lanes[request.band].rate.granted(now, request.tokens)
            account = turn[1][0]
            account.leases += 1  # it isn't idle between its place in the queue and its lease
            self.leave(now, request)
            if self._still_in_time(now, request, worker):
                self._grant(now, pool, turn, worker)
            account.leases -= 1
            account.book.settle(account)
            pools = [pool for pool in pools if pool.queue and pool.open]
        self._touched.clear()
        for pool in touched:
            if pool.queue:
                self.events.extend(self._preemptions.seek(now, pool))
        self._say_entered()

    def _still_in_time(self, now: float, request: Request, worker: Worker) -> bool:
        """Refuse a request whose turn comes too late for its deadline: nobody would read the answer."""
        if request.deadline == math.inf or not worker.model.trusted:
            return True
        ttft_s = (worker.base_ms + worker.slope_ms * request.uncached_on(worker)) / 1000
        if now + ttft_s <= request.deadline:
            return True
        left = request.deadline - now
        detail = f"a worker is free, but the first token takes about {ttft_s:.1f} s and the deadline is in {left:.1f} s"
        self.reject(request, RejectReason.DEADLINE, detail)
        return False

    def _enter(self, now: float, pool: Pool, request: Request) -> None:
        lane = pool.queue.lanes[request.band]
        lane.push(request)
        request.position_sent = 0
        self._entered.append(request)
        self.backlogged[pool] = None
        if lane.count == 1:
            lane.rate.backlogged(now, True)
        if request.deadline < math.inf:
            action = partial(self._deadline_passed, request)
            request.deadline_timer = self._timers.add(request.deadline, action)
        self._watch_orphan(now, pool, request)
        self.touch((pool,))
        self._arm_positions(now)

    def _grant(self, now: float, pool: Pool, turn: Turn, worker: Worker) -> None:
        request, accounts = turn
        lease = self._ledger.grant(request, worker)
        lease.granted_at = now
        lease.cost = cost_of(self._config, lease.prefill_tokens, request.answer_tokens)
        lease.accounts = accounts
        accounts[0].leases += 1
        for account in accounts:
            account.book.granted(account, lease.cost)
        pool.queue.hold(lease)
        self._fleet.grant(lease)
        event = Granted(request.gateway, request.number, lease.id, worker.info.address, worker.incarnation)
        event.matched_tokens = lease.matched_tokens
        event.priority_class, event.waited_s = request.priority_class, now - request.arrived
        event.promoted = len(accounts) > 1
        self.events.append(event)

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
                self._say_position(request, self._fleet.pools[request.model].queue.ahead(request) + 1)

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
            for position, (request, _) in enumerate(pool.queue.walk(now), 1):
                sent = request.position_sent
                if position * 2 <= sent or position >= sent * 2:
                    self._say_position(request, position)
        if self.backlogged:
            self._arm_positions(now)


def _urgency(now: float, pool: Pool) -> tuple[int, float, int]:
    request = next(pool.queue.walk(now))[0]
    return request.band, request.arrived, request.order
