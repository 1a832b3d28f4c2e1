"""Bounds and times of the scheduler; the settings fill it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Seconds unless the name says otherwise. Bounds are per model."""

    models: tuple[str, ...] = ()
    queue_requests_max: int = 4096
    queue_tokens_max: int = 32 * 1024 * 1024
    no_worker_wait_s: float = 10.0
    worker_timeout_s: float = 2.0
    settle_s: float = 5.0
    """After the start, unseen models wait so long for a worker that is still dialling: workers pause up to 3 s."""
    passes_max: int = 32
    """Grants to smaller, later requests that a waiting one bears before it holds the workers it could use."""
    look_ahead: int = 64
    """Waiting requests without room that are looked past in one search."""
    bounces_max: int = 3
    position_interval_s: float = 1.0
    """How often positions are compared with what was last said of them."""
    stall_s: float = 0.5
    """A timer that fires so late means that this process stood still, and the workers are given time to be heard."""
    prefix_blocks_max: int = 4_000_000
    """16-token blocks of all workers that the prefix index remembers, at most 200 bytes each."""
    prefix_precision_min: float = 0.5
    """Of the tokens predicted to be cached on a worker, so much must be, or load alone places requests there."""
    lost_lease_s: float = 30.0
    """How long a lease outlives its worker, for its gateway to release or bounce it."""
