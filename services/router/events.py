"""What the scheduler decides: plain values, addressed to a gateway (by its connection number) or to everybody."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class RejectReason(IntEnum):
    """Why a request gets no lease; the wire values of dispatch.proto."""

    QUEUE_FULL = 1
    NO_WORKERS = 2
    DEADLINE = 3
    UNKNOWN_MODEL = 4
    TOO_LARGE = 5
    BOUNCED_TOO_OFTEN = 6
    DRAINING = 7


@dataclass(slots=True)
class Queued:
    """The request waits; `position` 1 = next. Sent on entry, then when the position has halved or doubled."""

    gateway: int
    request: int
    position: int


@dataclass(slots=True)
class Granted:
    """The request may run on the worker at `address`. `matched_tokens` of its prompt are predicted to be cached."""

    gateway: int
    request: int
    lease: int
    address: str
    incarnation: int
    matched_tokens: int = 0
    priority_class: int = 1
    waited_s: float = 0.0
    """Since its arrival at the mesh."""
    promoted: bool = False
    """It starved in its class and was served in the one above."""


@dataclass(slots=True)
class Rejected:
    """The request ends without a lease. `retry_after_s` is 0 where there is no honest figure."""

    gateway: int
    request: int
    reason: RejectReason
    retry_after_s: float
    detail: str
    priority_class: int = 1


@dataclass(slots=True)
class Preempt:
    """Ask the gateway to give a lease of this class back if no byte went out yet: a higher class waits for its room."""

    gateway: int
    lease: int
    priority_class: int = 1


@dataclass(slots=True)
class ModelChanged:
    """What `Scheduler.model` says of this model is new. `card_changed`: its text rules too, tell before any grant."""

    model: str
    card_changed: bool


@dataclass(slots=True)
class WorkerDropped:
    """The scheduler no longer counts on this worker, though its stream may be open: end the stream."""

    incarnation: int
    detail: str


@dataclass(slots=True)
class ResendBlocks:
    """Ask this worker for a snapshot of its blocks: updates were missing."""

    incarnation: int


@dataclass(slots=True)
class TrustChanged:
    """Predicted prefix hits on this worker are used (again), or not: then load alone places requests there."""

    incarnation: int
    trusted: bool
    precision: float
    recall: float


Event = Queued | Granted | Rejected | Preempt | ModelChanged | WorkerDropped | ResendBlocks | TrustChanged
