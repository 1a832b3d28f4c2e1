"""A request in the router, and the lease it may get."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.router.accounts import Account
    from services.router.prefix.match import Match
    from services.router.timers import Timer
    from services.router.workers import Worker

MAX_EXCLUDED_WORKERS = 1024


@dataclass(slots=True, eq=False)
class Request:
    """One `Acquire`, from its arrival until it is rejected, withdrawn or its lease is released.

    Times are seconds of the scheduler's clock. `arrived` may lie before the router's start: a request that moved
    here from another router keeps its age. `max_tokens` is per choice.
    """

    gateway: int
    number: int
    model: str
    prompt_tokens: int
    max_tokens: int
    choices: int = 1
    arrived: float = 0.0
    deadline: float = math.inf
    excluded: frozenset[int] = frozenset()
    tenant: str = ""
    tenant_weight: float = 1.0
    priority_class: int = 1
    response_id: str = ""
    attempt: int = 0
    block_hashes: bytes = b""
    """Of the prompt's 16-token blocks, 16 bytes each, in chain order."""
    session: str = ""

    band: int = field(default=0, init=False)
    """Its class as a number from 0, the most urgent, to 2."""
    due: float = field(default=math.inf, init=False)
    """Where it stands among its tenant's requests."""
    work_s: float = field(default=0.0, init=False)
    """Prefill that it needed where most of it was cached, on arrival."""
    uncached: int = field(default=0, init=False)
    """Prompt tokens of that."""
    holds_out: bool = field(default=False, init=False)
    """There was room in the last search that it leaves to others: its prefix is elsewhere, or it is long."""
    held_for: Worker | None = field(default=None, init=False)
    """That worker, whose `held_ms` counts our `held_ms`."""
    held_ms: float = field(default=0.0, init=False)
    cost: float = field(default=0.0, init=False)
    """Weighted tokens that it is expected to come to, while it waits."""
    account: Account | None = field(default=None, init=False)
    """Its tenant's, while it waits."""
    asks: int = field(default=0, init=False)
    """How often somebody was asked to give way to it."""
    asking: Lease | None = field(default=None, init=False)
    """The last one that was asked to."""
    order: int = field(default=0, init=False)
    """Of arrival at this router; breaks ties between equal `arrived`."""
    bounces: int = field(default=0, init=False)
    passed: int = field(default=0, init=False)
    """Grants to later requests that this one could have used, were it smaller."""
    position_sent: int = field(default=0, init=False)
    waiting: bool = field(default=False, init=False)
    lease: Lease | None = field(default=None, init=False)
    match: Match | None = field(default=None, init=False)
    """Who holds how much of its prompt; None = nobody knows."""
    affine: Worker | None = field(default=None, init=False)
    """Of its session's last grant."""
    likely_tokens: int = field(default=0, init=False)
    """What one choice will probably generate; 0 = not known, count on `max_tokens`."""
    deadline_timer: Timer | None = field(default=None, init=False)
    orphan_timer: Timer | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.band = min(max(self.priority_class, 1), 3) - 1

    @property
    def answer_tokens(self) -> int:
        """That all its choices will probably generate."""
        return self.choices * (self.likely_tokens or self.max_tokens)

    @property
    def tokens(self) -> int:
        """All that it may come to: what the queue's token bound counts."""
        return self.prompt_tokens + self.max_tokens * self.choices

    def uncached_on(self, worker: Worker) -> int:
        """Prompt tokens that the worker will probably have to compute."""
        return self.prompt_tokens - (self.match.hits().get(worker, 0) if self.match is not None else 0)

    def blocks(self, block_size: int) -> int:
        """KV blocks at its longest. Choices share the full blocks of the prompt and own the rest."""
        shared, rest = divmod(self.prompt_tokens, block_size)
        return shared + self.choices * -(-(rest + self.max_tokens) // block_size)

    def likely_blocks(self, block_size: int) -> int:
        """KV blocks at its likely end."""
        shared, rest = divmod(self.prompt_tokens, block_size)
        return shared + self.choices * -(-(rest + (self.likely_tokens or self.max_tokens)) // block_size)


@dataclass(slots=True, frozen=True)
class Usage:
    """What a finished request came to, all choices together. `cached_tokens`: of its prompt, as the engine says."""

    completion_tokens: int
    cached_tokens: int


class LeaseState(Enum):
    """What the worker's reports say of a lease."""

    PENDING = "granted, in no report yet"
    RUNNING = "reported as started"
    ENDED = "reported as ended, not released yet"
    LOST = "its worker is gone, not released yet"


@dataclass(slots=True, eq=False)
class Lease:
    """Room on a worker, held by a request until its gateway releases or bounces it, or goes away."""

    id: int
    request: Request
    worker: Worker
    sequences: int
    blocks: int
    prefill_tokens: int
    """That it is expected to compute."""
    matched_tokens: int = 0
    """That were predicted to be cached, used for placement or not."""
    likely_blocks: int = 0
    """KV blocks that it will probably come to; `blocks` is the most."""
    state: LeaseState = LeaseState.PENDING
    granted_at: float = 0.0
    cost: float = 0.0
    """Weighted tokens that were charged to each of `accounts`, the tenant's first."""
    accounts: tuple[Account, ...] = ()
    asked: bool = False
    """Its gateway was asked to give it back, and is not asked again."""
