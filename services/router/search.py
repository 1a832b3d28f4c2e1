"""Whose turn it is: the first waiting request that fits somewhere, and how far others are looked past.

A request that fits nowhere now is looked past: smaller ones behind it may take room that it can't use. After
`passes_max` such grants the workers it could use are held for it, and only requests that go where it must not (its
`excluded` workers) still pass. So nobody starves, and a request that excludes the only free worker blocks no one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.placement import best

if TYPE_CHECKING:
    from services.router.pools import Pool
    from services.router.requests import Request
    from services.router.workers import Worker


def next_fit(pool: Pool, *, look_ahead: int, passes_max: int) -> tuple[Request, Worker] | None:
    """The next request of the pool's queue to be granted, and its worker; None = nobody fits now.

    Counts the pass on everybody who is looked past. At most `look_ahead` requests without room are.
    """
    workers = pool.open
    within: frozenset[int] | None = None
    blocked: list[Request] = []
    smallest: Request | None = None
    for request in pool.queue:
        if request.excluded and workers.keys() <= request.excluded:
            continue
        if smallest is None or not _as_large(request, smallest):
            worker = best(request, workers.values(), within)
            if worker is not None:
                _count_pass(blocked, worker)
                return request, worker
            if not request.excluded:
                smallest = request
        blocked.append(request)
        if request.passed >= passes_max:
            within = request.excluded if within is None else within & request.excluded
            if not workers.keys() & within:
                return None
        if len(blocked) >= look_ahead:
            return None
    return None


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
