"""StepFrame and TokenBatch: the FlatBuffers messages of the hot path, as columns in and columns out.

A frame is the gRPC message itself: `ATTACH_METHOD` is registered with identity (de)serializers and the codec here
turns columns into bytes and back. Reading checks that the columns agree; anything else is a `FrameError`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import flatbuffers
import numpy as np
from penstock.fb import StepFrame as fb
from penstock.fb import TokenBatch as fb_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

ATTACH_SERVICE = "penstock.v1.Engine"
ATTACH_METHOD = f"/{ATTACH_SERVICE}/Attach"

_GARBAGE = (struct.error, ValueError, IndexError, TypeError, OverflowError, MemoryError, UnicodeDecodeError)


class FrameError(ValueError):
    """The bytes are not a frame, or its columns contradict each other."""


class FinishReason(IntEnum):
    """Why a sequence ended; the wire values of frames.fbs."""

    NONE = 0
    STOP = 1
    LENGTH = 2
    ABORTED = 3
    DEADLINE = 4
    REFUSED = 5
    INVALID = 6
    FAILED = 7


@dataclass(slots=True)
class StepFrame:
    """One engine step for one gateway. Row i of each `finish_*` list belongs together, likewise the others.

    `tokens` holds the tokens of all rows one after the other: row i owns the next `count[i]` of them.
    `logprob_token` points into `tokens`; `top_*` hold `top_count[i]` alternatives of each pointed-at token.
    """

    incarnation: int
    step: int
    sequence: list[int] = field(default_factory=list)
    first_index: list[int] = field(default_factory=list)
    count: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    finish_sequence: list[int] = field(default_factory=list)
    finish_reason: list[int] = field(default_factory=list)
    finish_prompt_tokens: list[int] = field(default_factory=list)
    finish_cached_tokens: list[int] = field(default_factory=list)
    finish_completion_tokens: list[int] = field(default_factory=list)
    finish_detail: list[str] = field(default_factory=list)
    logprob_token: list[int] = field(default_factory=list)
    logprob: list[float] = field(default_factory=list)
    top_count: list[int] = field(default_factory=list)
    top_tokens: list[int] = field(default_factory=list)
    top_logprobs: list[float] = field(default_factory=list)

    def add_delta(self, sequence: int, first_index: int, tokens: Sequence[int]) -> int:
        """Append a row of at least one token; the position of its first token in `tokens`."""
        start = len(self.tokens)
        self.sequence.append(sequence)
        self.first_index.append(first_index)
        self.count.append(len(tokens))
        self.tokens.extend(tokens)
        return start

    def add_logprob(self, position: int, logprob: float, top: Sequence[tuple[int, float]]) -> None:
        """Log probability of `tokens[position]`, and its best alternatives as (token, logprob), best first."""
        self.logprob_token.append(position)
        self.logprob.append(logprob)
        self.top_count.append(len(top))
        for token, value in top:
            self.top_tokens.append(token)
            self.top_logprobs.append(value)

    def add_finish(
        self,
        sequence: int,
        reason: FinishReason,
        *,
        prompt_tokens: int = 0,
        cached_tokens: int = 0,
        completion_tokens: int = 0,
        detail: str = "",
    ) -> None:
        """Append the end of a sequence."""
        self.finish_sequence.append(sequence)
        self.finish_reason.append(reason)
        self.finish_prompt_tokens.append(prompt_tokens)
        self.finish_cached_tokens.append(cached_tokens)
        self.finish_completion_tokens.append(completion_tokens)
        self.finish_detail.append(detail)

    @property
    def empty(self) -> bool:
        """Nothing in it worth sending."""
        return not self.sequence and not self.finish_sequence


_U8, _U16, _U32, _F32 = np.dtype("<u1"), np.dtype("<u2"), np.dtype("<u4"), np.dtype("<f4")
# Column, its wire type, the generated function that adds it, the generated reader.
_COLUMNS: tuple[tuple[str, np.dtype[Any], Any, str], ...] = (
    ("sequence", _U32, fb.StepFrameAddSequence, "SequenceAsNumpy"),
    ("first_index", _U32, fb.StepFrameAddFirstIndex, "FirstIndexAsNumpy"),
    ("count", _U16, fb.StepFrameAddCount, "CountAsNumpy"),
    ("tokens", _U32, fb.StepFrameAddTokens, "TokensAsNumpy"),
    ("finish_sequence", _U32, fb.StepFrameAddFinishSequence, "FinishSequenceAsNumpy"),
    ("finish_reason", _U8, fb.StepFrameAddFinishReason, "FinishReasonAsNumpy"),
    ("finish_prompt_tokens", _U32, fb.StepFrameAddFinishPromptTokens, "FinishPromptTokensAsNumpy"),
    ("finish_cached_tokens", _U32, fb.StepFrameAddFinishCachedTokens, "FinishCachedTokensAsNumpy"),
    (
        "finish_completion_tokens",
        _U32,
        fb.StepFrameAddFinishCompletionTokens,
        "FinishCompletionTokensAsNumpy",
    ),
    ("logprob_token", _U32, fb.StepFrameAddLogprobToken, "LogprobTokenAsNumpy"),
    ("logprob", _F32, fb.StepFrameAddLogprob, "LogprobAsNumpy"),
    ("top_count", _U8, fb.StepFrameAddTopCount, "TopCountAsNumpy"),
    ("top_tokens", _U32, fb.StepFrameAddTopTokens, "TopTokensAsNumpy"),
    ("top_logprobs", _F32, fb.StepFrameAddTopLogprobs, "TopLogprobsAsNumpy"),
)
_DELTA_COLUMNS, _FINISH_COLUMNS, _LOGPROB_COLUMNS = _COLUMNS[:4], _COLUMNS[4:9], _COLUMNS[9:]


def encode_frame(frame: StepFrame) -> bytes:
    """The frame as FlatBuffers bytes; empty columns are left out."""
    builder = flatbuffers.Builder(256 + 16 * len(frame.sequence) + 4 * len(frame.tokens))
    offsets = []
    for name, dtype, add, _ in _COLUMNS:
        values = getattr(frame, name)
        if values:
            offsets.append((add, builder.CreateNumpyVector(np.array(values, dtype=dtype))))
    if any(frame.finish_detail):
        strings = [builder.CreateString(text) for text in frame.finish_detail]
        fb.StepFrameStartFinishDetailVector(builder, len(strings))
        for offset in reversed(strings):
            builder.PrependUOffsetTRelative(offset)
        offsets.append((fb.StepFrameAddFinishDetail, builder.EndVector()))
    fb.StepFrameStart(builder)
    fb.StepFrameAddIncarnation(builder, frame.incarnation)
    fb.StepFrameAddStep(builder, frame.step)
    for add, offset in offsets:
        add(builder, offset)
    builder.Finish(fb.StepFrameEnd(builder))
    return bytes(builder.Output())


def decode_frame(data: bytes) -> StepFrame:
    """Read and check a frame.

    Raises:
        FrameError: not a frame, or columns of unequal length, or counts that don't add up.
    """
    try:
        root = fb.StepFrame.GetRootAs(data, 0)
        frame = StepFrame(root.Incarnation(), root.Step())
        _read(root, frame, _DELTA_COLUMNS)
        if root.FinishSequenceLength():
            _read(root, frame, _FINISH_COLUMNS)
            _read_details(root, frame)
        if root.LogprobTokenLength():
            _read(root, frame, _LOGPROB_COLUMNS)
    except _GARBAGE as error:
        raise FrameError(f"not a StepFrame: {error}") from error
    _check(frame)
    return frame


def _read(root: Any, frame: StepFrame, columns: tuple[tuple[str, np.dtype[Any], Any, str], ...]) -> None:
    for name, _, _, reader in columns:
        column = getattr(root, reader)()
        if not isinstance(column, int):  # the int 0 stands for an absent vector
            setattr(frame, name, column.tolist())


def _read_details(root: Any, frame: StepFrame) -> None:
    length = root.FinishDetailLength()
    if length == 0:
        frame.finish_detail = [""] * len(frame.finish_sequence)
        return
    if length != len(frame.finish_sequence):
        raise ValueError("finish_detail has another length than finish_sequence")
    frame.finish_detail = [(root.FinishDetail(i) or b"").decode() for i in range(length)]


def _check(frame: StepFrame) -> None:
    rows = len(frame.sequence)
    if len(frame.first_index) != rows or len(frame.count) != rows or sum(frame.count) != len(frame.tokens):
        raise FrameError("the delta columns disagree")
    if rows and min(frame.count) < 1:
        raise FrameError("a delta without tokens")
    ends = len(frame.finish_sequence)
    if any(len(getattr(frame, column[0])) != ends for column in _FINISH_COLUMNS):
        raise FrameError("the finish columns disagree")
    if ends and (max(frame.finish_reason) > FinishReason.FAILED or min(frame.finish_reason) < FinishReason.STOP):
        raise FrameError("an unknown finish reason")
    if frame.logprob_token:
        _check_logprobs(frame)


def _check_logprobs(frame: StepFrame) -> None:
    marked = len(frame.logprob_token)
    tops = sum(frame.top_count)
    if len(frame.logprob) != marked or len(frame.top_count) != marked:
        raise FrameError("the logprob columns disagree")
    if len(frame.top_tokens) != tops or len(frame.top_logprobs) != tops:
        raise FrameError("the alternatives disagree with their counts")
    if max(frame.logprob_token) >= len(frame.tokens):
        raise FrameError("a logprob of a token that is not there")


def encode_tokens(tokens: Sequence[int] | npt.NDArray[np.uint32]) -> bytes:
    """Token ids (each 0 to 2**32-1) as a TokenBatch."""
    column = np.asarray(tokens, dtype=_U32)
    builder = flatbuffers.Builder(64 + 4 * len(column))
    offset = builder.CreateNumpyVector(column)
    fb_batch.TokenBatchStart(builder)
    fb_batch.TokenBatchAddTokens(builder, offset)
    builder.Finish(fb_batch.TokenBatchEnd(builder))
    return bytes(builder.Output())


def decode_tokens(data: bytes) -> npt.NDArray[np.uint32]:
    """The token ids of a TokenBatch, shape (n,), a view of `data`.

    Raises:
        FrameError: not a TokenBatch.
    """
    try:
        column = fb_batch.TokenBatch.GetRootAs(data, 0).TokensAsNumpy()
    except _GARBAGE as error:
        raise FrameError(f"not a TokenBatch: {error}") from error
    return np.zeros(0, dtype=_U32) if isinstance(column, int) else column
