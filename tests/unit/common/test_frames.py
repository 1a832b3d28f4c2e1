"""The codec of the hot path: what goes in comes out, and garbage is refused."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.frames import (
    FinishReason,
    FrameError,
    StepFrame,
    decode_frame,
    decode_tokens,
    encode_frame,
    encode_tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable

U32 = st.integers(0, 2**32 - 1)
U64 = st.integers(0, 2**64 - 1)
F32 = st.floats(width=32, allow_nan=False)


@st.composite
def frames(draw: st.DrawFn) -> StepFrame:
    frame = StepFrame(draw(U64), draw(U64))
    for _ in range(draw(st.integers(0, 6))):
        tokens = draw(st.lists(U32, min_size=1, max_size=5))
        start = frame.add_delta(draw(U32), draw(U32), tokens)
        if draw(st.booleans()):
            frame.add_logprob(start, draw(F32), draw(st.lists(st.tuples(U32, F32), max_size=3)))
    for _ in range(draw(st.integers(0, 4))):
        frame.add_finish(
            draw(U32),
            draw(st.sampled_from([reason for reason in FinishReason if reason])),
            prompt_tokens=draw(U32),
            cached_tokens=draw(U32),
            completion_tokens=draw(U32),
            detail=draw(st.text(max_size=20)),
        )
    return frame


@given(frames())
def test_a_frame_survives_the_wire(frame: StepFrame) -> None:
    assert decode_frame(encode_frame(frame)) == frame


@given(st.lists(U32, max_size=200))
def test_tokens_survive_the_wire(tokens: list[int]) -> None:
    assert decode_tokens(encode_tokens(tokens)).tolist() == tokens
    assert decode_tokens(encode_tokens(np.array(tokens, dtype=np.uint32))).tolist() == tokens


def test_tokens_are_read_without_a_copy() -> None:
    column = decode_tokens(encode_tokens(range(1000)))
    assert not column.flags.owndata
    assert not column.flags.writeable


@given(st.binary(max_size=400))
def test_garbage_is_a_frame_error_or_a_consistent_frame(data: bytes) -> None:
    try:
        frame = decode_frame(data)
    except FrameError:
        return
    assert len(frame.sequence) == len(frame.first_index) == len(frame.count)
    assert sum(frame.count) == len(frame.tokens)


@given(frames(), st.data())
def test_a_damaged_frame_never_gets_past_the_checks(frame: StepFrame, data: st.DataObject) -> None:
    wire = bytearray(encode_frame(frame))
    for _ in range(data.draw(st.integers(1, 4))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(wire[: data.draw(st.integers(0, len(wire)))])
    try:
        read = decode_frame(cut)
    except FrameError:
        return
    assert sum(read.count) == len(read.tokens)
    assert all(count >= 1 for count in read.count)
    assert all(FinishReason.STOP <= reason <= FinishReason.FAILED for reason in read.finish_reason)
    assert all(position < len(read.tokens) for position in read.logprob_token)


@given(st.binary(max_size=200))
def test_garbage_tokens_are_a_frame_error_or_an_array(data: bytes) -> None:
    try:
        assert decode_tokens(data).dtype == np.uint32
    except FrameError:
        return


def full() -> StepFrame:
    frame = StepFrame(1, 2)
    start = frame.add_delta(3, 4, [5, 6])
    frame.add_logprob(start, -0.5, [(5, -0.5), (9, -1.5)])
    frame.add_finish(3, FinishReason.STOP, prompt_tokens=7, completion_tokens=6, detail="done")
    return frame


CONTRADICTIONS: dict[str, Callable[[StepFrame], object]] = {
    "delta columns disagree": lambda f: f.first_index.append(1),
    "delta columns disagree ": lambda f: f.tokens.pop(),
    "without tokens": lambda f: f.add_delta(1, 1, []),
    "finish columns disagree": lambda f: f.finish_cached_tokens.append(1),
    "unknown finish reason": lambda f: f.finish_reason.__setitem__(0, 8),
    "unknown finish reason ": lambda f: f.finish_reason.__setitem__(0, FinishReason.NONE),
    "finish_detail has another length": lambda f: f.finish_detail.append("more"),
    "logprob columns disagree": lambda f: f.logprob.append(1.0),
    "alternatives disagree": lambda f: f.top_tokens.pop(),
    "not there": lambda f: f.logprob_token.__setitem__(0, 2),
}


@pytest.mark.parametrize("message", CONTRADICTIONS)
def test_columns_that_contradict_each_other_are_refused(message: str) -> None:
    good, bad = full(), full()
    assert decode_frame(encode_frame(good)) == good
    CONTRADICTIONS[message](bad)
    with pytest.raises(FrameError, match=message.strip()):
        decode_frame(encode_frame(bad))


def test_empty_columns_cost_nothing() -> None:
    empty = StepFrame(1, 2)
    assert empty.empty
    assert len(encode_frame(empty)) < 64
    assert not full().empty
    quiet = copy.deepcopy(full())
    quiet.finish_detail = [""]
    assert len(encode_frame(quiet)) < len(encode_frame(full()))
    assert decode_frame(encode_frame(quiet)) == quiet


def test_infinite_logprobs_survive() -> None:
    frame = StepFrame(1, 2)
    frame.add_logprob(frame.add_delta(0, 0, [1]), -math.inf, [])
    assert decode_frame(encode_frame(frame)).logprob == [-math.inf]
