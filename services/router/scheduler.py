"""The router's decisions: who gets which worker, who waits, who is refused. Pure: the clock is an argument.

Every method takes `now` (seconds of a monotonic clock, never falling) and returns the events it caused. Nothing here
does I/O, waits, or draws random numbers, so it runs unchanged in a discrete-event simulation: call `tick` at
`next_due`. The order of a queue is in `queue`, whose turn it is in `search`, where a request goes in `placement`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from services.router.events import Event, ModelChanged, RejectReason, WorkerDropped
from services.router.fleet import Fleet
from services.router.ledger import Ledger
from services.router.outputs import OutputLengths
from services.router.pools import ModelView, Pool
from services.router.prefix.tracker import PrefixTracker
from services.router.requests import Lease, LeaseState, Request, Usage
from services.router.sessions import Sessions
from services.router.timers import Timers
from services.router.waiting import WaitingRoom

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.router.config import SchedulerConfig
    from services.router.prefix.feed import BlockUpdate
    from services.router.workers import Registration, Report, Worker

PROVISIONAL_MODELS_MAX = 1024
"""Names that nobody serves yet and that may be asked for in the first seconds."""
MODEL_NAME_MAX = 256
_DRAINING = "this router is shutting down; ask another one"


class Scheduler:
    """All state of one router.

    Args:
        incarnation: of this router; makes its lease ids differ from those of other routers and earlier starts.
        now: the clock at the start.
    """

    def __init__(self, config: SchedulerConfig, *, incarnation: int, now: float) -> None:
        self._config = config
        self._prefixes = PrefixTracker(config.prefix_blocks_max, config.prefix_precision_min, now)
        self._outputs = OutputLengths()
        self._sessions = Sessions()
        self._fleet = Fleet(config, self._prefixes, self._sessions)
        self._timers = Timers()
        self._ledger = Ledger(incarnation)
        self._room = WaitingRoom(config, self._fleet, self._ledger, self._timers)
        self._lost: dict[int, list[tuple[Lease, bool]]] = {}
        self._settled = False
        self._draining = False
        self._timers.add(now + config.settle_s, self._settle)

    # What gateways say.

    def acquire(self, now: float, request: Request) -> list[Event]:
        """Grant, queue or reject.

        Raises:
            DuplicateRequestError: the gateway has a live request of this number.
        """
        self._ledger.open(request)
        if self._draining:
            self._room.reject(request, RejectReason.DRAINING, _DRAINING)
        elif request.deadline <= now:
            self._room.reject(request, RejectReason.DEADLINE, "the deadline had passed on arrival")
        elif (pool := self._pool_of(request.model)) is None:
            detail = f"no worker serves a model named {request.model[:MODEL_NAME_MAX]!r}"
            self._room.reject(request, RejectReason.UNKNOWN_MODEL, detail)
        else:
            self._prefixes.advance(now)
            self._prefixes.prepare(request)
            request.affine = self._sessions.worker_of(request)
            request.likely_tokens = self._outputs.likely(request.model, request.tenant, request.max_tokens)
            self._room.admit(now, pool, request)
        return self._flush(now)

    def withdraw(self, now: float, gateway: int, number: int) -> list[Event]:
        """The gateway wants no lease any more. If it was granted meanwhile, that is its release."""
        request = self._ledger.find(gateway, number)
        if request is None:
            return []
        if request.lease is not None:
            return self.release(now, gateway, request.lease.id)
        self._room.leave(now, request)
        self._ledger.close(request)
        return self._flush(now)

    def release(self, now: float, gateway: int, lease_id: int, usage: Usage | None = None) -> list[Event]:
        """The lease is over. One that isn't known (released before, or lost long ago) is fine.

        Args:
            usage: of a request that finished; None when it was cut short, which says nothing about the next.
        """
        lease = self._ledger.take(gateway, lease_id)
        if lease is None:
            return []
        self._room.over(lease, usage)
        if usage is not None:
            self._learn(lease, usage)
        self._fleet.release(lease, now)
        self._ledger.close(lease.request)
        return self._flush(now, lease.worker.pools)

    def bounced(self, now: float, gateway: int, lease_id: int) -> list[Event]:
        """The worker refused the lease: back to its old place; the worker gets nothing until its next report."""
        lease = self._ledger.take(gateway, lease_id)
        if lease is None:
            return []
        self._room.over(lease, returned=True)
        self._fleet.release(lease, now, refused=True)
        lease.request.bounces += 1
        self._requeue(now, lease.request)
        return self._flush(now, lease.worker.pools)

    def yielded(self, now: float, gateway: int, lease_id: int) -> list[Event]:
        """The gateway gave a lease back before its first byte, as asked: back to its old place."""
        lease = self._ledger.take(gateway, lease_id)
        if lease is None:
            return []
        self._room.over(lease, returned=True)
        self._fleet.release(lease, now)
        self._requeue(now, lease.request)
        return self._flush(now, lease.worker.pools)

    def refused(self, now: float, gateway: int, lease_id: int) -> list[Event]:
        """The gateway keeps a lease that it was asked to give back: another one may be asked for."""
        lease = self._ledger.leases.get(lease_id)
        if lease is None or lease.request.gateway != gateway:
            return []
        pool = self._fleet.pools[lease.request.model]
        pool.queue.asked.pop(lease_id, None)
        return self._flush(now, (pool,))

    def gateway_gone(self, now: float, gateway: int) -> list[Event]:
        """Its stream ended: drop what it waits for, release what it holds. Says nothing to it."""
        for request in self._ledger.of_gateway(gateway):
            if request.waiting:
                self._room.leave(now, request)
            elif request.lease is not None:
                lease = self._ledger.take(gateway, request.lease.id)
                if lease is not None:
                    self._room.over(lease)
                    self._fleet.release(lease, now)
                    self._room.touch(lease.worker.pools)
            self._ledger.close(request)
        return self._flush(now)

    # What workers say.

    def worker_registered(self, now: float, info: Registration) -> list[Event]:
        """A worker is there. One with the same id or incarnation is replaced."""
        for old in self._fleet.predecessors(info):
            self._drop(now, old, "a newer registration of this worker replaced it")
        worker = self._fleet.add(info, now)
        self._readopt(now, worker)
        self._watch(worker, now + self._config.worker_timeout_s)
        return self._flush(now, worker.pools)

    def worker_reported(self, now: float, incarnation: int, report: Report) -> list[Event]:
        """Its load now. Of a worker that is out already, nothing."""
        worker = self._fleet.workers.get(incarnation)
        if worker is None:
            return []
        self._fleet.report(worker, report, now)
        return self._flush(now, worker.pools)

    def worker_gone(self, now: float, incarnation: int) -> list[Event]:
        """Its stream ended."""
        worker = self._fleet.workers.get(incarnation)
        if worker is not None:
            self._remove(now, worker)
        return self._flush(now)

    def worker_blocks(self, now: float, incarnation: int, update: BlockUpdate) -> list[Event]:
        """What its prefix cache gained and lost. Of a worker that is out already, nothing.

        Raises:
            BlockStreamError: the worker broke the contract; its stream should end.
        """
        worker = self._fleet.workers.get(incarnation)
        if worker is None:
            return []
        self._prefixes.advance(now)
        return self._prefixes.update(worker, update)

    # What the clock and the operator say.

    def tick(self, now: float) -> list[Event]:
        """Do what is due: deadlines, silent workers, waits without workers, position updates."""
        self._timers.run(now)
        return self._flush(now)

    def next_due(self) -> float | None:
        """When `tick` has something to do next."""
        return self._timers.next_due()

    def drain(self, now: float) -> list[Event]:
        """Reject all that wait and all that comes, as DRAINING. Leases stay: their tokens don't pass here."""
        self._draining = True
        for pool in list(self._room.backlogged):
            self._room.reject_waiting(now, pool, RejectReason.DRAINING, _DRAINING)
        return self._flush(now)

    # What there is to see.

    def models(self) -> list[ModelView]:
        """Every known model."""
        return [pool.view() for pool in self._fleet.pools.values() if pool.known]

    def model(self, name: str) -> ModelView | None:
        """A known model."""
        pool = self._fleet.pools.get(name)
        return pool.view() if pool is not None and pool.known else None

    def workers(self) -> dict[int, Worker]:
        """Live workers by incarnation, to read only."""
        return self._fleet.workers

    def waiting(self) -> dict[str, tuple[int, int]]:
        """Model -> (requests, tokens) that wait, for models in which somebody does."""
        return {pool.name: (len(pool.queue), pool.queue.tokens) for pool in self._room.backlogged}

    def waiting_by_class(self) -> dict[str, list[tuple[int, int]]]:
        """Model -> (requests, tokens) that wait in each class, the most urgent first; every known model."""
        return {
            pool.name: [(lane.count, lane.tokens) for lane in pool.queue.lanes]
            for pool in self._fleet.pools.values()
            if pool.known
        }

    @property
    def live_requests(self) -> int:
        """Waiting or holding a lease."""
        return len(self._ledger)

    @property
    def live_leases(self) -> int:
        """Granted and not released."""
        return len(self._ledger.leases)

    @property
    def prefixes(self) -> PrefixTracker:
        """What is known of prefix caches, to read only."""
        return self._prefixes

    # How.

    def _learn(self, lease: Lease, usage: Usage) -> None:
        request = lease.request
        self._outputs.learn(request.model, request.tenant, usage.completion_tokens // request.choices)
        self._room.events += self._prefixes.ended(lease, usage.cached_tokens)

    def _pool_of(self, model: str) -> Pool | None:
        pools = self._fleet.pools
        pool = pools.get(model)
        may_come = not self._settled and len(pools) < PROVISIONAL_MODELS_MAX and len(model) <= MODEL_NAME_MAX
        if pool is None and may_come:
            pool = pools[model] = Pool(model, self._config, known=False)
        return pool

    def _settle(self, now: float, late_s: float) -> None:
        """Every worker had the time to dial: a model that none of them serves is unknown."""
        if late_s > self._config.stall_s:
            self._timers.add(now + self._config.stall_s, self._settle)
            return
        self._settled = True
        for pool in [pool for pool in self._fleet.pools.values() if not pool.known]:
            detail = f"no worker serves a model named {pool.name!r}"
            self._room.reject_waiting(now, pool, RejectReason.UNKNOWN_MODEL, detail)
            del self._fleet.pools[pool.name]

    def _requeue(self, now: float, request: Request) -> None:
        pool = self._fleet.pools[request.model]
        if request.bounces >= self._config.bounces_max:
            detail = f"workers were fuller than they had reported, {request.bounces} times"
            retry_after_s = self._room.retry_after_s(now, pool, request.band)
            self._room.reject(request, RejectReason.BOUNCED_TOO_OFTEN, detail, retry_after_s)
        elif self._draining:
            self._room.reject(request, RejectReason.DRAINING, _DRAINING)
        else:
            self._room.readmit(now, pool, request)

    def _watch(self, worker: Worker, due: float) -> None:
        self._timers.add(due, partial(self._check, worker))

    def _check(self, worker: Worker, now: float, late_s: float) -> None:
        """Drop the worker if it was silent too long. If it was us who stood still, its reports may wait unread."""
        if self._fleet.workers.get(worker.incarnation) is not worker:
            return
        heard_until = worker.last_heard + self._config.worker_timeout_s
        if heard_until > now:
            self._watch(worker, heard_until)
        elif late_s > self._config.stall_s:
            self._watch(worker, now + self._config.stall_s)
        else:
            self._drop(now, worker, f"no report for {self._config.worker_timeout_s:g} s")

    def _drop(self, now: float, worker: Worker, detail: str) -> None:
        self._remove(now, worker)
        self._room.events.append(WorkerDropped(worker.incarnation, detail))

    def _remove(self, now: float, worker: Worker) -> None:
        """Its leases stay known until their gateways release or bounce them: a bounce must find its request."""
        leases = self._fleet.remove(worker)
        self._lose(now, worker.incarnation, [(lease, lease.state is LeaseState.PENDING) for lease in leases])

    def _lose(self, now: float, incarnation: int, leases: list[tuple[Lease, bool]]) -> None:
        if not leases:
            return
        for lease, _ in leases:
            lease.state = LeaseState.LOST
            self._fleet.pools[lease.request.model].queue.unhold(lease)
        self._lost[incarnation] = leases
        self._timers.add(now + self._config.lost_lease_s, partial(self._forget_lost, incarnation, leases))

    def _forget_lost(self, incarnation: int, leases: list[tuple[Lease, bool]], now: float, late_s: float) -> None:
        if self._lost.get(incarnation) is leases:
            del self._lost[incarnation]
        for lease, _ in leases:
            if lease.state is LeaseState.LOST and self._ledger.take(lease.request.gateway, lease.id) is lease:
                self._room.over(lease)
                self._ledger.close(lease.request)

    def _readopt(self, now: float, worker: Worker) -> None:
        """The stream broke, the worker lived: leases that it still runs count as ours again."""
        leases = self._lost.pop(worker.incarnation, [])
        alive = [(lease, pending) for lease, pending in leases if lease.id in self._ledger.leases]
        left = []
        for lease, pending in alive:
            if self._fleet.adopt(worker, lease, pending):
                self._fleet.pools[lease.request.model].queue.hold(lease)
            else:
                left.append((lease, pending))
        self._lose(now, worker.incarnation, left)

    def _flush(self, now: float, pools: Iterable[Pool] = ()) -> list[Event]:
        """Say which models changed, grant what fits now, and hand over the events."""
        self._prefixes.advance(now)
        room = self._room
        room.touch(pools)
        for pool, new_card in self._fleet.take_changed().items():
            room.events.append(ModelChanged(pool.name, new_card))
            room.recheck(now, pool)
            room.touch((pool,))
        room.run(now)
        events, room.events = room.events, []
        return events
