"""Between the messages of dispatch.proto and registry.proto and the scheduler's values."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from penstock.v1 import dispatch_pb2, registry_pb2

from services.common.blocks import BLOCK_TOKENS, HASH_BYTES, split
from services.common.errors import InvalidRequestError
from services.router.events import Granted, Preempt, Queued, Rejected
from services.router.prefix.feed import BlockUpdate
from services.router.requests import MAX_EXCLUDED_WORKERS, Request, Usage
from services.router.workers import Registration, Report

if TYPE_CHECKING:
    from services.router.pools import ModelView

_MODELS_MAX = 1024
_STEPS_MAX = 16
_SESSION_MAX = 256
_RETRY_AFTER_MS_MAX = 0xFFFF_FFFF


def request_of(gateway: int, message: dispatch_pb2.Acquire, now: float) -> Request:
    """An `Acquire` that arrived at `now` on the connection `gateway`.

    Raises:
        InvalidRequestError: names the field that breaks the contract.
    """
    if len(message.excluded_workers) > MAX_EXCLUDED_WORKERS:
        raise InvalidRequestError(f"at most {MAX_EXCLUDED_WORKERS} workers can be excluded", param="excluded_workers")
    if len(message.block_hashes) % HASH_BYTES:
        raise InvalidRequestError("block hashes are 16 bytes each", param="block_hashes")
    if len(message.block_hashes) // HASH_BYTES > message.prompt_tokens // BLOCK_TOKENS:
        raise InvalidRequestError("more block hashes than the prompt has whole blocks", param="block_hashes")
    if len(message.session) > _SESSION_MAX:
        raise InvalidRequestError(f"a session has at most {_SESSION_MAX} characters", param="session")
    if not message.response_id:
        raise InvalidRequestError("an acquire needs its response id", param="response_id")
    return Request(
        gateway=gateway,
        number=message.request,
        model=message.model,
        prompt_tokens=message.prompt_tokens,
        max_tokens=message.max_tokens,
        choices=message.choices or 1,
        arrived=now - message.waited_ms / 1000,
        deadline=now + message.deadline_ms / 1000 if message.deadline_ms else math.inf,
        excluded=frozenset(message.excluded_workers),
        tenant=message.tenant,
        tenant_weight=message.tenant_weight or 1.0,
        priority_class=message.priority_class or dispatch_pb2.INTERACTIVE,
        response_id=message.response_id,
        attempt=message.attempt,
        block_hashes=message.block_hashes,
        session=message.session,
    )


def registration_of(message: registry_pb2.Registration) -> Registration:
    """A worker's first message.

    Raises:
        InvalidRequestError: names the field that breaks the contract.
    """
    for name in ("worker_id", "incarnation", "address", "card_hash", "context_length", "max_sequences", "kv_blocks"):
        if not getattr(message, name):
            raise InvalidRequestError(f"a registration needs {name}", param=f"registration.{name}")
    if not message.kv_block_size:
        raise InvalidRequestError("a registration needs kv_block_size", param="registration.kv_block_size")
    if not 0 < len(message.models) <= _MODELS_MAX or not all(message.models):
        raise InvalidRequestError(f"1 to {_MODELS_MAX} model names are needed", param="registration.models")
    return Registration(
        worker_id=message.worker_id,
        incarnation=message.incarnation,
        address=message.address,
        models=tuple(message.models),
        card_hash=message.card_hash,
        context_length=message.context_length,
        max_sequences=message.max_sequences,
        kv_blocks=message.kv_blocks,
        block_size=message.kv_block_size,
        # A registration without a report is that of an idle worker.
        report=report_of(message.report) if message.HasField("report") else Report(free_blocks=message.kv_blocks),
        engine=message.engine,
        leases=frozenset(message.leases),
        reports_blocks=message.reports_blocks,
    )


def blocks_of(message: registry_pb2.BlockEvents) -> BlockUpdate:
    """What a worker's prefix cache gained and lost.

    Raises:
        InvalidRequestError: a field is no list of hashes.
    """
    for name in ("stored", "removed"):
        if len(getattr(message, name)) % HASH_BYTES:
            raise InvalidRequestError("block hashes are 16 bytes each", param=f"blocks.{name}")
    return BlockUpdate(
        sequence=message.sequence,
        snapshot_begin=message.snapshot_begin,
        snapshot_end=message.snapshot_end,
        stored=split(message.stored),
        removed=split(message.removed),
    )


def report_of(message: registry_pb2.LoadReport) -> Report:
    """A worker's load; step samples beyond the contract's 16 are left out."""
    return Report(
        running=message.running,
        waiting=message.waiting,
        free_blocks=message.free_kv_blocks,
        queued_prefill_tokens=message.queued_prefill_tokens,
        leases_started=tuple(message.leases_started),
        leases_ended=tuple(message.leases_ended),
        steps=tuple((step.step_ms, step.prefill_tokens, step.running) for step in message.steps[:_STEPS_MAX]),
        draining=message.draining,
    )


def usage_of(message: dispatch_pb2.Release) -> Usage | None:
    """Of a request that finished with an answer."""
    if message.outcome != dispatch_pb2.FINISHED or not message.completion_tokens:
        return None
    return Usage(message.completion_tokens, message.cached_tokens)


def message_of(event: Queued | Granted | Rejected | Preempt) -> dispatch_pb2.RouterMessage:
    """What a gateway reads."""
    if isinstance(event, Granted):
        granted = dispatch_pb2.Granted(
            request=event.request,
            lease=event.lease,
            worker=event.address,
            incarnation=event.incarnation,
            matched_tokens=event.matched_tokens,
        )
        return dispatch_pb2.RouterMessage(granted=granted)
    if isinstance(event, Queued):
        queued = dispatch_pb2.Queued(request=event.request, position=event.position)
        return dispatch_pb2.RouterMessage(queued=queued)
    if isinstance(event, Preempt):
        return dispatch_pb2.RouterMessage(preempt=dispatch_pb2.Preempt(lease=event.lease))
    rejected = dispatch_pb2.Rejected(
        request=event.request,
        reason=dispatch_pb2.RejectReason.ValueType(event.reason.value),
        retry_after_ms=min(math.ceil(event.retry_after_s * 1000), _RETRY_AFTER_MS_MAX),
        detail=event.detail,
    )
    return dispatch_pb2.RouterMessage(rejected=rejected)


def update_of(view: ModelView) -> dispatch_pb2.RouterMessage:
    """A model as gateways are told of it."""
    update = dispatch_pb2.ModelUpdate(
        model=view.model, card_hash=view.card_hash, workers=view.workers, context_length=view.context_length
    )
    return dispatch_pb2.RouterMessage(model=update)
