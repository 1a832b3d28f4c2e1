"""The cache key holds everything that shapes an answer; what can't be moved says why."""

from __future__ import annotations

from typing import Any

import pytest
from penstock.v1 import dispatch_pb2, engine_pb2

from services.common.tenants import Tenant, hash_key
from services.gateway.generation.job import Job
from tests.unit.gateway.listeners import text_model


def tenant(name: str) -> Tenant:
    return Tenant(id=name, key_hashes=(hash_key(name),))


def job(**fields: Any) -> Job:
    sampling = engine_pb2.SamplingParams(**{"max_tokens": 8, **fields.pop("sampling", {})})
    values: dict[str, Any] = {
        "response_id": "r", "model": "m", "text": text_model(), "prompt": [1, 2, 3], "sampling": sampling,
        "choices": 1, "tenant": tenant("dev"), "priority_class": dispatch_pb2.INTERACTIVE, "deadline": None,
    }  # fmt: skip
    return Job(**{**values, **fields})


OTHERS: list[dict[str, Any]] = [
    {"prompt": [1, 2, 4]},
    {"prompt": [1, 2]},
    {"model": "other"},
    {"tenant": tenant("other")},
    {"choices": 2},
    {"stops": ("a",)},
    {"stops": ("a", "b")},
    {"stops": ("a\0b",)},
    {"sampling": {"max_tokens": 9}},
    {"sampling": {"temperature": 0.5}},
    {"sampling": {"seed": 0}},
    {"sampling": {"seed": 1}},
    {"sampling": {"logit_bias": {1: 2.0}}},
    {"sampling": {"min_tokens": 1}},
    {"sampling": {"json_object": True}},
    {"sampling": {"json_schema": "{}"}},
    {"sampling": {"ignore_eos": True}},
]


def test_every_thing_that_shapes_an_answer_changes_the_key() -> None:
    keys = [job(**fields).cache_key for fields in [{}, *OTHERS]]
    assert len(set(keys)) == len(keys)
    assert all(len(key) == 32 for key in keys)


def test_what_does_not_shape_it_changes_nothing() -> None:
    same = [
        job(), job(response_id="q"), job(deadline=5.0), job(arrived=1.0), job(priority_class=dispatch_pb2.BATCH),
        job(prompt=(1, 2, 3)), job(sampling={"logit_bias": {}}),
    ]  # fmt: skip
    assert len({each.cache_key for each in same}) == 1


def test_the_order_of_a_map_does_not_change_the_key() -> None:
    forward, backward = dict.fromkeys(range(20), 1.0), dict.fromkeys(reversed(range(20)), 1.0)
    assert job(sampling={"logit_bias": forward}).cache_key == job(sampling={"logit_bias": backward}).cache_key


@pytest.mark.parametrize(
    ("sampling", "reason"),
    [
        ({}, ""),
        ({"seed": 1, "temperature": 1.0, "repetition_penalty": 1.2}, ""),
        ({"presence_penalty": 0.5}, "penalties"),
        ({"frequency_penalty": -0.5}, "penalties"),
        ({"json_object": True}, "structured output"),
        ({"json_schema": "{}"}, "structured output"),
    ],
)
def test_what_can_not_be_moved_says_why(sampling: dict[str, Any], reason: str) -> None:
    why = job(sampling=sampling).movable_after_first_token()
    assert reason in why
    assert bool(why) == bool(reason)


def test_an_adapter_is_named_and_the_base_model_is_not() -> None:
    assert (job().lora, job(model="m-lora").lora) == ("", "m-lora")
