"""One Attach stream: which tokens go to which sequence, and what is sent to the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from penstock.v1 import engine_pb2 as pb

from services.common.frames import FinishReason, FrameError, StepFrame
from services.gateway.mesh import workers as module
from services.gateway.mesh.workers import WorkerLink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.gateway.mesh.workers import Logprobs


class FakeSink:
    """Remembers."""

    def __init__(self) -> None:
        self.tokens: list[tuple[int, list[int], Logprobs | None]] = []
        self.finishes: list[tuple[FinishReason, int, int, int, str]] = []
        self.lost: list[str] = []

    def on_tokens(self, first_index: int, tokens: Sequence[int], logprobs: Logprobs | None) -> None:
        self.tokens.append((first_index, list(tokens), logprobs))

    def on_finish(
        self, reason: FinishReason, prompt_tokens: int, cached_tokens: int, completion_tokens: int, detail: str
    ) -> None:
        self.finishes.append((reason, prompt_tokens, cached_tokens, completion_tokens, detail))

    def on_lost(self, why: str) -> None:
        self.lost.append(why)


def linked(count: int) -> tuple[WorkerLink, list[FakeSink], list[int]]:
    link, sinks = WorkerLink("w:1", 7, "g"), [FakeSink() for _ in range(count)]
    return link, sinks, link.submit(pb.Submit(), sinks)


def sent(link: WorkerLink) -> list[pb.Submit | int]:
    return link._outbox._items


def test_one_submit_for_all_choices_with_handles_in_a_row() -> None:
    link, _, handles = linked(3)
    assert handles == [1, 2, 3]
    assert link.submit(pb.Submit(), [FakeSink()]) == [4]
    assert [item.sequence for item in sent(link) if isinstance(item, pb.Submit)] == [1, 4]


def test_a_frame_goes_to_its_sequences() -> None:
    link, (first, second), (a, b) = linked(2)
    frame = StepFrame(7, 1)
    frame.add_delta(b, 5, [10, 11])
    frame.add_delta(99, 0, [1])
    frame.add_delta(a, 0, [12])
    frame.add_finish(b, FinishReason.LENGTH, prompt_tokens=3, cached_tokens=2, completion_tokens=7, detail="x")
    link.on_frame(frame)
    assert first.tokens == [(0, [12], None)]
    assert second.tokens == [(5, [10, 11], None)]
    assert (first.finishes, second.finishes) == ([], [(FinishReason.LENGTH, 3, 2, 7, "x")])


def test_log_probabilities_go_with_the_tokens_that_they_are_of() -> None:
    link, (first, second), (a, b) = linked(2)
    frame = StepFrame(7, 1)
    frame.add_delta(a, 0, [10])
    at = frame.add_delta(b, 0, [20, 21])
    frame.add_logprob(at, -0.5, [(20, -0.5), (9, -2.0)])
    frame.add_logprob(at + 1, -0.25, [])
    link.on_frame(frame)
    assert first.tokens == [(0, [10], None)]
    assert second.tokens == [(0, [20, 21], [(20, -0.5, [(20, -0.5), (9, -2.0)]), (21, -0.25, [])])]


def test_nothing_comes_after_an_end_or_an_abort() -> None:
    link, (first, second), (a, b) = linked(2)
    end = StepFrame(7, 1)
    end.add_finish(a, FinishReason.STOP)
    link.on_frame(end)
    link.abort([a, b, b])
    late = StepFrame(7, 2)
    late.add_delta(a, 0, [1])
    late.add_delta(b, 0, [1])
    late.add_finish(b, FinishReason.ABORTED)
    link.on_frame(late)
    assert (first.tokens, second.tokens, second.finishes) == ([], [], [])
    assert [item for item in sent(link) if isinstance(item, int)] == [b]


def test_a_frame_of_another_incarnation_is_an_error() -> None:
    link, _, _ = linked(1)
    with pytest.raises(FrameError, match="incarnation 8"):
        link.on_frame(StepFrame(8, 1))


def test_a_lost_link_loses_what_it_has_and_what_is_submitted_later() -> None:
    link, (sink,), _ = linked(1)
    link._lose("gone")
    late = FakeSink()
    link.submit(pb.Submit(), [late])
    link.abort([1])
    assert (sink.lost, late.lost) == (["gone"], ["the worker is gone"])


async def test_what_waits_leaves_in_few_messages_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BATCH_BYTES_MAX", 100)
    link = WorkerLink("w:1", 7, "g")
    for size in (60, 30, 60, 500, 10):
        link.submit(pb.Submit(prompt=b"x" * size), [FakeSink()])
    link.abort([1])
    link._outbox.close()
    batches = [batch async for batch in link._requests()]
    assert batches[0].hello == pb.AttachHello(gateway_id="g", incarnation=7)
    assert [[len(s.prompt) for s in batch.submits] for batch in batches[1:]] == [[60, 30], [60], [500], [10]]
    assert list(batches[-1].aborts) == [1]
