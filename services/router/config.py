"""Bounds and times of the scheduler; the settings fill it."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """Seconds unless the name says otherwise. Bounds of queues are per model and class, lists go by class."""

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
    length_bounds: tuple[int, ...] = (512, 2048)
    """Uncached prompt tokens that divide short, medium and long prompts; empty = no pools by length."""
    lost_lease_s: float = 30.0
    """How long a lease outlives its worker, for its gateway to release or bounce it."""
    floors: tuple[float, ...] = (0.5, 0.2, 0.05)
    """Shares of a model's sequences that are kept for interactive, standard and batch while they have demand."""
    demand_s: float = 10.0
    """A class or tenant that asked so recently is counted on to ask again."""
    promote_after_s: tuple[float, ...] = (math.inf, 10.0, 60.0)
    """A class whose oldest request waited longer also stands, as one tenant, in the class above."""
    promoted_weight: float = 0.25
    """Of that tenant there."""
    output_weight: float = 2.0
    """Cost of a generated token in uncached prompt tokens (Sheng et al. 2024)."""
    deadline_horizon_s: float = 30.0
    """In its tenant's queue a request stands as if its deadline were at most so long after its arrival."""
    patience: float = 8.0
    """Without deadlines, requests of a tenant stand as if due so many times their prefill after their arrival, so that
    short work and cached prompts pass long ones."""
    patience_s_max: float = 120.0
    """And at most so long after it: nobody is passed by those that came so much later."""
    backlog_ms_max: float = 250.0
    """Workers that have more prefill than this before them get nothing more: what is not started yet waits here, where
    there is an order, and not in the engine's queue. Two reports apart, so that no engine runs dry."""
    preempts_max: int = 4
    """Leases per model that are asked for at one time."""
    preempt_age_s: float = 10.0
    """A lease older than this has sent its first byte, or will soon."""
    preempt_answer_s: float = 2.0
    """A gateway that doesn't answer for so long refused."""
