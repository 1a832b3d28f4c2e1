"""Whose turn it is: the first waiting request that fits somewhere, and how far others are looked past.

A request that fits nowhere now is looked past: smaller ones behind it may take room that it can't use. After
`passes_max` such grants the workers it could use are held for it, and only requests that go where it must not (its
`excluded` workers) still pass. So nobody starves, and a request that excludes the only free worker blocks no one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.placement import best

if TYPE_CHECKING:
    from services.router.config import SchedulerConfig
    from services.router.lane import Turn
    from services.router.pools import Pool
    from services.router.requests import Request
    from services.router.workers import Worker


class _Room:
    """What one class may take now."""

    __slots__ = ("smallest", "spare", "workers")

    def __init__(self, workers: dict[int, Worker], spare: int | None) -> None:
        self.workers = workers
        self.spare = spare
        self.smallest: Request | None = None
        """The smallest of this class that fitted nowhere."""


def candidates(pool: Pool, config: SchedulerConfig, now: float, band: int) -> dict[int, Worker]:
    """Workers with room for the class: while it competes with others, only those that aren't behind already."""
    return _not_behind(pool, config) if pool.queue.contended(now, band) else pool.open


def _not_behind(pool: Pool, config: SchedulerConfig) -> dict[int, Worker]:
    most = config.backlog_ms_max
    return {incarnation: worker for incarnation, worker in pool.open.items() if worker.base_ms <= most}


def next_fit(pool: Pool, config: SchedulerConfig, now: float) -> tuple[Worker, Turn] | None:
    """The next request of the pool's queue to be granted, and its worker; None = nobody fits now.

    Counts the pass on everybody who is looked past. At most `look_ahead` requests without room are.
    """
    rooms = _rooms(pool, config, now)
    within: frozenset[int] | None = None
    blocked: list[Request] = []
    for turn in pool.queue.walk(now, [band for band, room in enumerate(rooms) if room is None]):
        request = turn[0]
        room = rooms[request.band]
        if room is None or (request.excluded and room.workers.keys() <= request.excluded):
            continue
        worker = _place(request, room, within)
        if worker is not None:
            _count_pass(blocked, worker)
            return worker, turn
        blocked.append(request)
        if request.passed >= config.passes_max:
            within = request.excluded if within is None else within & request.excluded
            if not pool.open.keys() & within:
                return None
        if len(blocked) >= config.look_ahead:
            return None
    return None


def _rooms(pool: Pool, config: SchedulerConfig, now: float) -> list[_Room | None]:
    """By class; None = nobody of it waits, or nothing is there for it."""
    rooms: list[_Room | None] = [None] * len(pool.queue.lanes)
    narrow: dict[int, Worker] | None = None
    free: int | None = None
    for band, lane in enumerate(pool.queue.lanes):
        if not lane.count:
            continue
        workers = pool.open
        if pool.queue.contended(now, band):
            workers = narrow = _not_behind(pool, config) if narrow is None else narrow
        if not workers:
            continue
        spare: int | None = None
        if kept := pool.queue.kept_from(now, band):
            free = sum([worker.free_sequences for worker in pool.open.values()]) if free is None else free
            spare = max(free - kept, pool.queue.lacks(band))
        if spare is None or spare > 0:
            rooms[band] = _Room(workers, spare)
    return rooms


def _place(request: Request, room: _Room, within: frozenset[int] | None) -> Worker | None:
    if room.spare is not None and request.choices > room.spare:
        return None
    if room.smallest is not None and _as_large(request, room.smallest):
        return None
    worker = best(request, room.workers.values(), within)
    if worker is None and not request.excluded:
        room.smallest = request
    return worker


def _as_large(request: Request, blocked: Request) -> bool:
    """Then there is no room for it either; spares looking at every worker for each of a thousand equal requests."""
    return (
        request.choices >= blocked.choices
        and request.prompt_tokens >= blocked.prompt_tokens
        and request.max_tokens >= blocked.max_tokens
    )


def _count_pass(blocked: list[Request], worker: Worker) -> None:
    for request in blocked:
        if worker.incarnation not in request.excluded:
            request.passed += 1
