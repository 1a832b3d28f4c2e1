"""Where a request runs: the worker with the lowest predicted time to first token that has room for all of it.

The prediction counts what the worker has to compute before, what of the prompt it doesn't hold yet, and what a full KV
cache will cost. Work weighs more than waiting: a cache hit given away is paid for by everybody behind. Why, and what
was tried: docs/scheduling.md.
"""

from __future__ import annotations

import math
from itertools import islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from services.router.requests import Request
    from services.router.workers import Worker

_TIE = 1.01
_TIE_MS = 0.5
"""Predictions within 1 % and half a millisecond of the best are equal: the fit's noise must not pick one for ever."""
_GIVEN_AWAY = 1.5
"""Weight of a cached token that is given away, beside one of waiting. It bounds the imbalance too: a worker with the
prefix is at most 1.5 times the saved prefill behind another before that one gets the request, and so the prefix."""
_HOLD_OUT = 100.0
"""A request waits for the worker that has its prefix at most so many times the prefill that this saves."""


def best(
    request: Request,
    workers: Iterable[Worker],
    within: Collection[int] | None = None,
    backlog_ms: float = math.inf,
    keep: int = 0,
) -> Worker | None:
    """The worker for `request`, or None when no one has room now, or when it should hold out for a better one.

    Args:
        workers: those with any room at all.
        within: when given, incarnations that alone may be chosen.
        backlog_ms: workers with more prefill than that before them get nothing now.
        keep: it may not take one of the last so many without that.

    Among equals, the one that served the session last, else the one whose last grant is the longest ago. Sets
    `request.holds_out`.
    """
    let_go(request)
    sequences, tokens, prompt = request.choices, request.prompt_tokens + request.max_tokens, request.prompt_tokens
    excluded = request.excluded
    hits = request.match.hits() if request.match is not None else None
    # What it doesn't hold costs its own time; what another holds and it doesn't costs everybody's behind, too.
    most_work = prompt + (_GIVEN_AWAY - 1) * max(hits.values()) if hits else prompt
    block_size = blocks = likely = 0
    # Two lists, not one of pairs: a thousand tuples per decision would set off the garbage collector each time.
    scores: list[float] = []
    fitting: list[Worker] = []
    for worker in workers:
        if worker.block_size != block_size:
            block_size = worker.block_size
            blocks, likely = request.blocks(block_size), request.likely_blocks(block_size)
        if worker.free_sequences < sequences or worker.free_blocks < blocks or tokens > worker.info.context_length:
            continue
        if (excluded and worker.incarnation in excluded) or (within is not None and worker.incarnation not in within):
            continue
        work = most_work - _GIVEN_AWAY * hits.get(worker, 0) if hits else prompt
        if likely > worker.spare_blocks:
            work += block_size * (likely - worker.spare_blocks)
        scores.append(worker.base_ms + worker.held_ms + worker.slope_ms * work)
        fitting.append(worker)
    return _choose(request, scores, fitting, backlog_ms, keep) if fitting else None


def _choose(
    request: Request, scores: Sequence[float], workers: Sequence[Worker], backlog_ms: float, keep: int
) -> Worker | None:
    if keep and len(list(islice((True for worker in workers if worker.backlog_ms <= backlog_ms), keep + 1))) <= keep:
        request.holds_out = True
        return None
    lowest = min(scores)
    first = workers[scores.index(lowest)]
    if first.backlog_ms > backlog_ms:
        ready = [score for score, worker in zip(scores, workers, strict=True) if worker.backlog_ms <= backlog_ms]
        if not ready:
            return None
        lowest = min(ready)
        if _holds_out(request, first, workers[scores.index(lowest)]):
            _hold_out(request, first)
            return None
    limit = lowest * _TIE + _TIE_MS
    equals = [
        worker
        for score, worker in zip(scores, workers, strict=True)
        if score <= limit and worker.backlog_ms <= backlog_ms
    ]
    if request.affine in equals:
        return request.affine
    return min(equals, key=_least_recent)


def let_go(request: Request) -> None:
    """It holds out for nobody any more."""
    request.holds_out = False
    if request.held_for is not None:
        request.held_for.held_ms -= request.held_ms
        request.held_for = None


def _hold_out(request: Request, worker: Worker) -> None:
    """Count what it will cost the worker, so that not everybody waits for the same one."""
    hits = request.match.hits() if request.match is not None else {}
    request.holds_out = True
    request.held_for = worker
    request.held_ms = worker.slope_ms * (request.prompt_tokens - hits.get(worker, 0))
    worker.held_ms += request.held_ms


def _holds_out(request: Request, behind: Worker, ready: Worker) -> bool:
    """Whether the prefill that it saves on `behind` is worth more waiting than it did already."""
    match = request.match
    if match is None:
        return False
    hits = match.hits()
    saved_ms = behind.slope_ms * (hits.get(behind, 0) - hits.get(ready, 0))
    return (match.now - request.arrived) * 1e3 < saved_ms * _HOLD_OUT


def _least_recent(worker: Worker) -> tuple[int, int]:
    return worker.granted_order, worker.order
