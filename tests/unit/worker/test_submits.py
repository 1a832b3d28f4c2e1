"""A bad Submit is refused with the name of the field; handles are never used twice."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.frames import encode_tokens
from services.worker.submits import HandleSet, Limits, SubmitError, read_submit
from tests.unit.worker.make import sampling, submit

LIMITS = Limits(vocab_size=100, context_length=50, max_logprobs=20, capabilities=("logprobs",), loras=("poet",))
NAN, INF = float("nan"), float("inf")


def test_a_good_submit_gives_its_tokens() -> None:
    assert read_submit(submit(1, [7, 8, 9]), LIMITS).tolist() == [7, 8, 9]
    moved = submit(1, [7, 8, 9], prompt_tokens=2, first_index=1, lora="poet", sampling=sampling(max_tokens=47))
    assert read_submit(moved, LIMITS).tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"prompt": b""}, "prompt"),
        ({"prompt": b"\xff" * 40}, "prompt"),
        ({"prompt": encode_tokens([])}, "prompt"),
        ({"prompt": encode_tokens([1, 100])}, "prompt"),
        ({"prompt_tokens": 0}, "prompt_tokens"),
        ({"prompt_tokens": 4}, "prompt_tokens"),
        ({"prompt_tokens": 2}, "first_index"),
        ({"first_index": 1}, "first_index"),
        ({"choices": 0}, "choices"),
        ({"choices": 129}, "choices"),
        ({"choices": 2, "prompt_tokens": 2, "first_index": 1}, "choices"),
        ({"sequence": 2**32 - 1, "choices": 2}, "sequence"),
        ({"lora": "nobody"}, "lora"),
        ({"sampling": sampling(max_tokens=0)}, "sampling.max_tokens"),
        ({"sampling": sampling(max_tokens=48)}, "sampling.max_tokens"),
        ({"sampling": sampling(max_tokens=2**32 - 1)}, "sampling.max_tokens"),
        ({"sampling": sampling(min_tokens=5)}, "sampling.min_tokens"),
        ({"sampling": sampling(temperature=NAN)}, "sampling.temperature"),
        ({"sampling": sampling(top_p=INF)}, "sampling.top_p"),
        ({"sampling": sampling(logprobs=21)}, "sampling.logprobs"),
        ({"sampling": sampling(logit_bias={100: 1.0})}, "sampling.logit_bias"),
        ({"sampling": sampling(logit_bias={-1: 1.0})}, "sampling.logit_bias"),
        ({"sampling": sampling(logit_bias={1: NAN})}, "sampling.logit_bias"),
        ({"sampling": sampling(stop_token_ids=range(1_025))}, "sampling.stop_token_ids"),
        ({"sampling": sampling(json_object=True)}, "sampling.json_object"),
        ({"sampling": sampling(json_schema="{}")}, "sampling.json_schema"),
    ],
)
def test_a_bad_submit_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(SubmitError) as caught:
        read_submit(submit(**{"sequence": 7, **fields}), LIMITS)
    assert str(caught.value).startswith(named + ":")


@pytest.mark.parametrize("schema", ["{not json", "[" * 60_000, " " * 70_000])
def test_a_schema_must_be_json_of_some_size(schema: str) -> None:
    able = replace(LIMITS, capabilities=("structured_output",))
    read_submit(submit(1, sampling=sampling(json_schema='{"type": "object"}')), able)
    with pytest.raises(SubmitError, match="json_schema"):
        read_submit(submit(1, sampling=sampling(json_schema=schema)), able)


@given(st.binary(max_size=200))
def test_garbage_prompts_raise_nothing_else(garbage: bytes) -> None:
    with contextlib.suppress(SubmitError):
        read_submit(submit(1, prompt=garbage), LIMITS)


@given(st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=40))
def test_handle_set_is_a_set(additions: list[tuple[int, int]]) -> None:
    ranges, plain = HandleSet(), set[int]()
    for first, count in additions:
        wanted = set(range(first, first + count))
        assert ranges.add(first, count) == (not wanted & plain)
        if not wanted & plain:
            plain |= wanted
    gaps = sum(handle - 1 not in plain for handle in plain)
    assert len(ranges) == gaps


def test_counted_handles_cost_nothing() -> None:
    handles = HandleSet()
    for handle in range(10_000):
        assert handles.add(handle, 1)
    assert len(handles) == 1
