"""Whose turn it is: the first waiting request that fits somewhere, and how far others are looked past.

A request that fits nowhere now is looked past: smaller ones behind it may take room that it can't use. After
`passes_max` such grants the workers it could use are held for it, and only requests that go where it must not (its
`excluded` workers) still pass. So nobody starves, and a request that excludes the only free worker blocks no one.

One that holds out, for a worker that has its prefix or to leave room for shorter ones, is passed freely.
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

_LOOKS_MAX = 2048
"""At workers on behalf of those who hold out, in one search: keeps a decision short where there are many workers."""


class _Room:
    """What one class may take now."""

    __slots__ = ("smallest", "spare")

    def __init__(self, spare: int | None) -> None:
        self.spare = spare
        self.smallest: Request | None = None
        """The smallest of this class that fitted nowhere."""


def next_fit(pool: Pool, config: SchedulerConfig, now: float) -> tuple[Worker, Turn] | None:
    """The next request of the pool's queue to be granted, and its worker; None = nobody fits now.

    Counts the pass on everybody who is looked past. At most `look_ahead` requests without room are.
    """
    backlog_ms = config.backlog_ms_max
    if all(worker.backlog_ms > backlog_ms for worker in pool.open.values()):
        return None
    rooms = _rooms(pool, now)
    within: frozenset[int] | None = None
    blocked: list[Request] = []
    held_out = 0
    for turn in pool.queue.walk(now, [band for band, room in enumerate(rooms) if room is None]):
        request = turn[0]
        room = rooms[request.band]
        if room is None or (request.excluded and pool.open.keys() <= request.excluded):
            continue
        worker = _place(now, request, room, pool, within, backlog_ms)
        if worker is not None:
            _count_pass(blocked, worker)
            return worker, turn
        if request.holds_out:
            held_out += 1
            if held_out * len(pool.open) >= _LOOKS_MAX:
                return None
            continue
        blocked.append(request)
        if request.passed >= config.passes_max:
            within = request.excluded if within is None else within & request.excluded
            if not pool.open.keys() & within:
                return None
        if len(blocked) >= config.look_ahead:
            return None
    return None


def _rooms(pool: Pool, now: float) -> list[_Room | None]:
    """By class; None = nobody of it waits, or nothing is there for it."""
    rooms: list[_Room | None] = [None] * len(pool.queue.lanes)
    free: int | None = None
    for band, lane in enumerate(pool.queue.lanes):
        if not lane.count:
            continue
        spare: int | None = None
        if kept := pool.queue.kept_from(now, band):
            free = sum([worker.free_sequences for worker in pool.open.values()]) if free is None else free
            spare = max(free - kept, pool.queue.lacks(band))
        if spare is None or spare > 0:
            rooms[band] = _Room(spare)
    return rooms


def _place(
    now: float,
    request: Request,
    room: _Room,
    pool: Pool,
    within: frozenset[int] | None,
    backlog_ms: float,
) -> Worker | None:
    request.holds_out = False
    if room.spare is not None and request.choices > room.spare:
        return None
    if room.smallest is not None and _as_large(request, room.smallest):
        return None
    worker = best(request, pool.open.values(), within, backlog_ms, pool.kept_from(now, request))
    if worker is None and not request.excluded and not request.holds_out:
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
