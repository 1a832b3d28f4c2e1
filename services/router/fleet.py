"""All live workers, and which models they serve. Knows nothing of requests but their leases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.pools import Pool
from services.router.requests import Lease, LeaseState
from services.router.workers import Registration, Report, Worker

if TYPE_CHECKING:
    from collections.abc import Iterable

    from services.router.config import SchedulerConfig
    from services.router.prefix.tracker import PrefixTracker
    from services.router.sessions import Sessions


class Fleet:
    """Workers by incarnation and the pools they form.

    Every method that changes a worker keeps the pools' `open` in step. `changed` collects, until somebody takes it,
    the pools whose eligible workers changed, and whether their card did.
    """

    def __init__(self, config: SchedulerConfig, prefixes: PrefixTracker, sessions: Sessions) -> None:
        self._config = config
        self._prefixes = prefixes
        self._sessions = sessions
        self.workers: dict[int, Worker] = {}
        self.pools = {name: Pool(name, config, known=True) for name in config.models}
        self.changed: dict[Pool, bool] = {}
        self._by_id: dict[str, Worker] = {}
        self._registrations = 0
        self._grants = 0

    def predecessors(self, info: Registration) -> list[Worker]:
        """Live registrations that `info` replaces: of the same worker id or incarnation."""
        found = {self._by_id.get(info.worker_id), self.workers.get(info.incarnation)} - {None}
        return sorted((worker for worker in found if worker is not None), key=lambda worker: worker.order)

    def add(self, info: Registration, now: float) -> Worker:
        """Count on a new worker. Its predecessors must have been removed."""
        self._registrations += 1
        worker = Worker(info, self._registrations, now)
        self.workers[info.incarnation] = worker
        self._by_id[info.worker_id] = worker
        self._prefixes.add(worker)
        for name in dict.fromkeys(info.models):
            pool = self.pools.setdefault(name, Pool(name, self._config, known=True))
            pool.known = True
            pool.workers[info.incarnation] = worker
            worker.pools.append(pool)
        self._elect(worker.pools)
        return worker

    def remove(self, worker: Worker) -> list[Lease]:
        """Forget a worker; its leases, now LOST or ENDED."""
        del self.workers[worker.incarnation]
        self._prefixes.remove(worker)
        if self._by_id.get(worker.info.worker_id) is worker:
            del self._by_id[worker.info.worker_id]
        for pool in worker.pools:
            del pool.workers[worker.incarnation]
        self._elect(worker.pools)
        return list(worker.leases.values())

    def report(self, worker: Worker, report: Report, now: float) -> None:
        """Take a load report."""
        had_room, was_draining = worker.has_room, worker.draining
        worker.report(report, now)
        if worker.draining != was_draining:
            self._elect(worker.pools)
        else:
            self._sync(worker, had_room)

    def grant(self, lease: Lease) -> None:
        """Raise the load of the lease's worker."""
        self._grants += 1
        worker = lease.worker
        had_room = worker.has_room
        worker.grant(lease, self._grants)
        self._prefixes.granted(lease, worker.base_ms / 1000)
        self._sessions.granted(lease)
        self._sync(worker, had_room)

    def release(self, lease: Lease, now: float, *, refused: bool = False) -> None:
        """Lower it again. `refused`: the worker bounced the lease, so its report is out of date."""
        if lease.state is LeaseState.LOST:
            return
        worker = lease.worker
        had_room = worker.has_room
        worker.release(lease, now)
        if refused:
            worker.refused()
        self._sync(worker, had_room)

    def adopt(self, worker: Worker, lease: Lease, pending: bool) -> bool:
        """Give a lost lease back to its worker, which registered again."""
        had_room = worker.has_room
        adopted = worker.adopt(lease, pending)
        self._sync(worker, had_room)
        return adopted

    def take_changed(self) -> dict[Pool, bool]:
        """Pools whose workers changed since the last call -> whether the card did."""
        changed, self.changed = self.changed, {}
        return changed

    def _elect(self, pools: Iterable[Pool]) -> None:
        for pool in pools:
            changed, new_card = pool.elect()
            if changed:
                self.changed[pool] = self.changed.get(pool, False) or new_card

    def _sync(self, worker: Worker, had_room: bool) -> None:
        if worker.has_room is not had_room:
            for pool in worker.pools:
                pool.room_changed(worker)
