"""Where a request runs: the worker with the lowest predicted time to first token that has room for all of it.

The prediction counts what the worker has to compute before, what of the prompt it doesn't hold yet, and what a full KV
cache will cost. See docs/scheduling.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from services.router.requests import Request
    from services.router.workers import Worker

_TIE = 1.05
_TIE_MS = 0.5
"""Predictions within 5 % and half a millisecond of the best are equal: the fit's noise must not pick one for ever."""
HIT_WEIGHT = 1.0


def best(request: Request, workers: Iterable[Worker], within: Collection[int] | None = None) -> Worker | None:
    """The worker for `request`, or None when no one has room now. One pass over the workers.

    Args:
        workers: those with any room at all.
        within: when given, incarnations that alone may be chosen.

    Among equals, the one that served the session last, else the one whose last grant is the longest ago.
    """
    sequences, tokens, prompt = request.choices, request.prompt_tokens + request.max_tokens, request.prompt_tokens
    excluded = request.excluded
    hits = request.match.hits() if request.match is not None else None
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
        uncached = prompt - hits.get(worker, 0) if hits else prompt
        score = worker.base_ms + worker.slope_ms * uncached * HIT_WEIGHT
        if likely > worker.spare_blocks:
            score += worker.slope_ms * block_size * (likely - worker.spare_blocks)
        scores.append(score)
        fitting.append(worker)
    if not fitting:
        return None
    limit = min(scores) * _TIE + _TIE_MS
    equals = [worker for score, worker in zip(scores, fitting, strict=True) if score <= limit]
    if request.affine in equals:
        return request.affine
    return min(equals, key=_least_recent)


def _least_recent(worker: Worker) -> tuple[int, int]:
    return worker.granted_order, worker.order
