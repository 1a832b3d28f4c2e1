"""What the router knows of a worker: its last report, and its own grants that the report doesn't count yet.

Three kinds of load stand on a worker: own leases that no report lists yet (PENDING), own leases that the report counts
(RUNNING), and foreign load (leases of other routers, slots a worker keeps for itself) = what the report says beyond
the own leases it counts. A lease released before the report that lists its end stays counted as own (`_released`)
for a moment, so that it isn't taken for foreign load.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.requests import Lease, LeaseState, Request
from services.router.step_model import StepModel

if TYPE_CHECKING:
    from services.router.pools import Pool

RELEASED_KEPT_S = 1.0
"""How long a released lease waits for the report of its end: two heartbeats. Then the report alone counts."""

_FULL = 0.9
"""Filled over this by what its leases will likely come to, a worker recomputes what it drops: placement counts that."""


@dataclass(slots=True, frozen=True)
class Report:
    """A LoadReport. Sequences, blocks, tokens; `steps` are (step_ms, prefill_tokens, running)."""

    running: int = 0
    waiting: int = 0
    free_blocks: int = 0
    queued_prefill_tokens: int = 0
    leases_started: tuple[int, ...] = ()
    leases_ended: tuple[int, ...] = ()
    steps: tuple[tuple[float, int, int], ...] = ()
    draining: bool = False


@dataclass(slots=True, frozen=True)
class Registration:
    """Who a worker is, what it serves, and its load at this moment. `leases`: those it is running now."""

    worker_id: str
    incarnation: int
    address: str
    models: tuple[str, ...]
    card_hash: str
    context_length: int
    max_sequences: int
    kv_blocks: int
    block_size: int
    report: Report
    engine: str = ""
    leases: frozenset[int] = frozenset()
    reports_blocks: bool = False


@dataclass(slots=True)
class _Released:
    sequences: int
    blocks: int
    counted: bool
    forget_at: float


class Worker:
    """One live registration. `free_sequences`, `free_blocks`, `base_ms` and `slope_ms` are kept up to date."""

    __slots__ = (
        "_counted_blocks", "_counted_sequences", "_likely_blocks", "_own_blocks", "_own_sequences", "_pending_prefill",
        "_released", "_report", "backlog_ms", "base_ms", "block_size", "bounced", "draining", "free_blocks",
        "free_sequences", "granted_order", "has_room", "held_ms", "info", "last_heard", "leases", "model", "order",
        "pools", "slope_ms", "spare_blocks",
    )  # fmt: skip

    def __init__(self, info: Registration, order: int, now: float) -> None:
        self.info = info
        self.order = order
        self.block_size = info.block_size
        self.model = StepModel()
        self.leases: dict[int, Lease] = {}
        self.pools: list[Pool] = []
        self.last_heard = now
        self.draining = False
        self.bounced = False
        """It refused a lease that the last report had room for: nothing more until the next report."""
        self.granted_order = 0
        self.held_ms = 0.0
        """Prefill of those who hold out for it."""
        self._released: dict[int, _Released] = {}
        self._own_sequences = self._own_blocks = self._likely_blocks = self._pending_prefill = 0
        self._counted_sequences = self._counted_blocks = 0
        self.has_room = False
        self.report(info.report, now)

    @property
    def incarnation(self) -> int:
        """Of this start of the worker."""
        return self.info.incarnation

    @property
    def known_sequences(self) -> int:
        """Own leases and foreign load."""
        reported = self._report.running + self._report.waiting
        return self._own_sequences + max(0, reported - self._counted_sequences)

    @property
    def known_blocks(self) -> int:
        """KV blocks that own leases may come to, and what others hold beyond."""
        used = self.info.kv_blocks - min(self._report.free_blocks, self.info.kv_blocks)
        return self._own_blocks + max(0, used - self._counted_blocks)

    @property
    def known_prefill_tokens(self) -> int:
        """Prompt tokens not computed yet."""
        return self._report.queued_prefill_tokens + self._pending_prefill

    def could_hold(self, request: Request) -> bool:
        """Whether it could run the request if it were empty."""
        info = self.info
        return (
            request.prompt_tokens + request.max_tokens <= info.context_length
            and request.choices <= info.max_sequences
            and request.blocks(info.block_size) <= info.kv_blocks
        )

    def grant(self, lease: Lease, order: int) -> None:
        """Count a new lease."""
        self.granted_order = order
        self._attach(lease)
        self._refresh()

    def adopt(self, lease: Lease, pending: bool) -> bool:
        """Take back a lost lease of this incarnation, if the worker runs it or, being `pending`, it is on its way."""
        running = lease.id in self.info.leases
        if not running and not pending:
            return False
        lease.worker, lease.state = self, LeaseState.PENDING
        self._attach(lease)
        if running:
            self._started(lease)
        self._refresh()
        return True

    def release(self, lease: Lease, now: float) -> None:
        """The lease is over, by its gateway's word."""
        del self.leases[lease.id]
        if lease.state is not LeaseState.ENDED:
            counted = lease.state is LeaseState.RUNNING
            self._released[lease.id] = _Released(lease.sequences, lease.blocks, counted, now + RELEASED_KEPT_S)
            self._drop_own(lease)
            lease.state = LeaseState.ENDED
        self._refresh()

    def report(self, report: Report, now: float) -> None:
        """Take a load report: the load as the worker sees it, and which leases that includes from now on."""
        self.last_heard = now
        self.bounced = False
        self.draining = report.draining
        self._report = report
        for lease_id in report.leases_started:
            self._report_started(lease_id)
        for lease_id in report.leases_ended:
            self._report_ended(lease_id)
        if self._released:
            self._forget_released(now)
        self.model.learn(report.steps)
        self._refresh()

    def refused(self) -> None:
        """It bounced a lease: its report is out of date."""
        self.bounced = True
        self._refresh()

    def _attach(self, lease: Lease) -> None:
        self.leases[lease.id] = lease
        self._own_sequences += lease.sequences
        self._own_blocks += lease.blocks
        self._likely_blocks += lease.likely_blocks
        self._pending_prefill += lease.prefill_tokens

    def _started(self, lease: Lease) -> None:
        lease.state = LeaseState.RUNNING
        self._pending_prefill -= lease.prefill_tokens
        self._counted_sequences += lease.sequences
        self._counted_blocks += lease.blocks

    def _drop_own(self, lease: Lease) -> None:
        self._own_sequences -= lease.sequences
        self._own_blocks -= lease.blocks
        self._likely_blocks -= lease.likely_blocks
        if lease.state is LeaseState.PENDING:
            self._pending_prefill -= lease.prefill_tokens

    def _report_started(self, lease_id: int) -> None:
        lease = self.leases.get(lease_id)
        if lease is not None and lease.state is LeaseState.PENDING:
            self._started(lease)
        released = self._released.get(lease_id)
        if released is not None and not released.counted:
            released.counted = True
            self._counted_sequences += released.sequences
            self._counted_blocks += released.blocks

    def _report_ended(self, lease_id: int) -> None:
        lease = self.leases.get(lease_id)
        if lease is not None and lease.state is not LeaseState.ENDED:
            self._drop_own(lease)
            if lease.state is LeaseState.RUNNING:
                self._counted_sequences -= lease.sequences
                self._counted_blocks -= lease.blocks
            lease.state = LeaseState.ENDED
        released = self._released.pop(lease_id, None)
        if released is not None:
            self._uncount(released)

    def _forget_released(self, now: float) -> None:
        for lease_id in [key for key, value in self._released.items() if value.forget_at <= now]:
            self._uncount(self._released.pop(lease_id))

    def _uncount(self, released: _Released) -> None:
        if released.counted:
            self._counted_sequences -= released.sequences
            self._counted_blocks -= released.blocks

    def _refresh(self) -> None:
        """Predicted TTFT in ms of a prompt of n uncached tokens here = base_ms + slope_ms * n.

        The prompt waits for the prefill tokens before it; a step takes at most `chunk_tokens` of them and costs
        a + c * running besides, and one such step is always paid.
        """
        model, sequences = self.model, self.known_sequences
        self.free_sequences = self.info.max_sequences - sequences
        known_blocks = self.known_blocks
        self.free_blocks = self.info.kv_blocks - known_blocks
        foreign = known_blocks - self._own_blocks
        self.spare_blocks = int(self.info.kv_blocks * _FULL) - self._likely_blocks - foreign
        overhead = model.a + model.c * sequences
        self.slope_ms = model.b + overhead / model.chunk_tokens
        self.backlog_ms = self.slope_ms * self.known_prefill_tokens
        self.base_ms = overhead + self.backlog_ms
        self.has_room = self.free_sequences > 0 and self.free_blocks > 0 and not self.draining and not self.bounced
