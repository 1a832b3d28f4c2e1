"""What the wire says, and what it may not say."""

from __future__ import annotations

import math
from typing import Any

import pytest
from penstock.v1 import dispatch_pb2, registry_pb2

from services.common.errors import InvalidRequestError
from services.router.events import Granted, Preempt, Queued, Rejected, RejectReason
from services.router.wire import message_of, registration_of, report_of, request_of

ACQUIRE: dict[str, Any] = {"request": 3, "response_id": "r", "model": "m", "prompt_tokens": 5, "max_tokens": 7}
REGISTRATION: dict[str, Any] = {
    "worker_id": "w", "incarnation": 1, "address": "h:1", "models": ["m"], "card_hash": "c", "context_length": 10,
    "max_sequences": 1, "kv_blocks": 9, "kv_block_size": 16,
}  # fmt: skip


def test_the_reasons_are_those_of_the_wire() -> None:
    wire = {name: value for name, value in dispatch_pb2.RejectReason.items() if value}
    assert {reason.name: reason.value for reason in RejectReason} == wire


def test_remaining_milliseconds_become_times_of_our_clock() -> None:
    request = request_of(9, dispatch_pb2.Acquire(**ACQUIRE, deadline_ms=1500, waited_ms=250), 100.0)
    assert (request.gateway, request.number, request.deadline, request.arrived) == (9, 3, 101.5, 99.75)
    assert request.choices == 1
    assert request_of(9, dispatch_pb2.Acquire(**ACQUIRE), 100.0).deadline == math.inf


@pytest.mark.parametrize(
    ("field", "value"), [("excluded_workers", range(1, 1026)), ("block_hashes", b"x" * 17), ("response_id", "")]
)
def test_a_bad_acquire_names_its_field(field: str, value: object) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        request_of(1, dispatch_pb2.Acquire(**{**ACQUIRE, field: value}), 0.0)
    assert caught.value.param == field


@pytest.mark.parametrize("field", [name for name in REGISTRATION if name != "report"])
def test_a_registration_without_a_field_names_it(field: str) -> None:
    values = {name: value for name, value in REGISTRATION.items() if name != field}
    with pytest.raises(InvalidRequestError) as caught:
        registration_of(registry_pb2.Registration(**values))
    assert caught.value.param == f"registration.{field}"


def test_a_registration_without_a_report_is_that_of_an_idle_worker() -> None:
    assert registration_of(registry_pb2.Registration(**REGISTRATION)).report.free_blocks == 9


def test_step_samples_beyond_the_contract_are_left_out() -> None:
    steps = [registry_pb2.StepSample(step_ms=n, prefill_tokens=n, running=n) for n in range(1, 100)]
    assert len(report_of(registry_pb2.LoadReport(steps=steps)).steps) == 16


def test_every_event_has_its_message() -> None:
    assert message_of(Granted(1, 2, 3, "h:1", 4)).granted.lease == 3
    assert message_of(Queued(1, 2, 3)).queued.position == 3
    assert message_of(Preempt(1, 2)).preempt.lease == 2
    rejected = message_of(Rejected(1, 2, RejectReason.QUEUE_FULL, 0.0301, "why")).rejected
    assert (rejected.reason, rejected.retry_after_ms, rejected.detail) == (dispatch_pb2.QUEUE_FULL, 31, "why")
