"""The gateway's side of Attach: one stream per worker process, StepFrames in, deltas out to their sequences.

`WorkerLink.on_frame` is the hot path of the whole gateway: it runs once per engine step and calls each sequence's sink
directly, so a token goes from the frame to the client's socket without a task switch.
"""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Protocol

import grpc
import grpc.aio
from penstock.v1 import engine_pb2 as pb

from services.common import rpc
from services.common.frames import ATTACH_METHOD, FinishReason, FrameError, StepFrame, decode_frame

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Sequence

log = logging.getLogger(__name__)

OUTBOX_MESSAGES_MAX = 65_536
BATCH_BYTES_MAX = rpc.MESSAGE_BYTES_MAX // 4
"""Prompt bytes that travel in one message, but for a single prompt that is longer."""

Logprobs = list[tuple[int, float, list[tuple[int, float]]]]
"""Per token: (token id, log probability, its best alternatives as (token id, log probability))."""


class Sink(Protocol):
    """Where the tokens of one sequence go. Called from the frame callback: quick, never blocking."""

    def on_tokens(self, first_index: int, tokens: Sequence[int], logprobs: Logprobs | None) -> None:
        """Tokens `first_index` onwards."""

    def on_finish(
        self, reason: FinishReason, prompt_tokens: int, cached_tokens: int, completion_tokens: int, detail: str
    ) -> None:
        """The worker ended the sequence."""

    def on_lost(self, why: str) -> None:
        """The worker went away; nothing more comes."""


class WorkerLink:
    """One Attach stream to one incarnation of a worker."""

    def __init__(self, address: str, incarnation: int, gateway_id: str) -> None:
        self.address = address
        self.incarnation = incarnation
        self.lost = False
        self._gateway_id = gateway_id
        self._handles = itertools.count(1)
        self._sinks: dict[int, Sink] = {}
        self._outbox: rpc.Outbox[pb.Submit | int] = rpc.Outbox(OUTBOX_MESSAGES_MAX)
        self._call: grpc.aio.StreamStreamCall[pb.AttachBatch, bytes] | None = None

    async def run(self) -> None:
        """Read frames until the stream ends; then every sequence here is lost."""
        why = "the worker closed its stream"
        try:
            async with rpc.channel(self.address) as channel:
                attach: grpc.aio.StreamStreamMultiCallable[pb.AttachBatch, bytes] = channel.stream_stream(
                    ATTACH_METHOD, request_serializer=pb.AttachBatch.SerializeToString, response_deserializer=None
                )
                self._call = call = attach(self._requests())
                try:
                    async for data in call:
                        self.on_frame(decode_frame(data))
                finally:
                    call.cancel()
        except grpc.aio.AioRpcError as error:
            why = f"{error.code().name}: {error.details()}"
        except FrameError as error:
            why = f"the worker sent garbage: {error}"
            log.error("bad frame", extra={"worker": self.address, "reason": str(error)})
        finally:
            self._lose(why)

    async def _requests(self) -> AsyncIterator[pb.AttachBatch]:
        yield pb.AttachBatch(hello=pb.AttachHello(gateway_id=self._gateway_id, incarnation=self.incarnation))
        while items := await self._outbox.take():
            batch, size = pb.AttachBatch(), 0
            for item in items:
                if isinstance(item, int):
                    batch.aborts.append(item)
                    continue
                if size and size + len(item.prompt) > BATCH_BYTES_MAX:
                    yield batch
                    batch, size = pb.AttachBatch(), 0
                batch.submits.append(item)
                size += len(item.prompt)
            yield batch

    def _lose(self, why: str) -> None:
        self.lost = True
        self._outbox.close()
        sinks, self._sinks = self._sinks, {}
        if sinks:
            log.warning("worker lost", extra={"worker": self.address, "reason": why, "sequences": len(sinks)})
        for sink in sinks.values():
            sink.on_lost(why)

    def submit(self, submit: pb.Submit, sinks: Sequence[Sink]) -> list[int]:
        """Send `submit` with fresh handles, one per sink; the handles. A lost link loses the sinks at once."""
        handles = [next(self._handles) for _ in sinks]
        if self.lost:
            for sink in sinks:
                sink.on_lost("the worker is gone")
            return handles
        submit.sequence = handles[0]
        self._sinks.update(zip(handles, sinks, strict=True))
        self._put(submit)
        return handles

    def abort(self, handles: Sequence[int]) -> None:
        """Stop sequences; frames still on their way are dropped. Those that ended already are left out."""
        for handle in handles:
            if self._sinks.pop(handle, None) is not None:
                self._put(handle)

    def _put(self, item: pb.Submit | int) -> None:
        try:
            self._outbox.put(item)
        except BufferError:  # the worker stopped reading: the stream's end loses its sequences, which then move
            if self._call is not None:
                self._call.cancel()

    def on_frame(self, frame: StepFrame) -> None:
        """Hand one engine step to its sequences."""
        if frame.incarnation != self.incarnation:
            raise FrameError(f"frame of incarnation {frame.incarnation:x} on a stream of {self.incarnation:x}")
        logprobs = _logprobs(frame) if frame.logprob_token else None
        sinks, tokens, start = self._sinks, frame.tokens, 0
        for handle, first_index, count in zip(frame.sequence, frame.first_index, frame.count, strict=True):
            end = start + count
            sink = sinks.get(handle)
            if sink is not None:  # else aborted here while the frame was on its way
                if logprobs is None:
                    sink.on_tokens(first_index, tokens[start:end], None)
                else:
                    rows = [logprobs[at] for at in range(start, end) if at in logprobs]
                    sink.on_tokens(first_index, tokens[start:end], rows or None)
            start = end
        if frame.finish_sequence:
            self._finish(frame)

    def _finish(self, frame: StepFrame) -> None:
        for at, handle in enumerate(frame.finish_sequence):
            sink = self._sinks.pop(handle, None)
            if sink is not None:
                sink.on_finish(
                    FinishReason(frame.finish_reason[at]),
                    frame.finish_prompt_tokens[at],
                    frame.finish_cached_tokens[at],
                    frame.finish_completion_tokens[at],
                    frame.finish_detail[at],
                )


def _logprobs(frame: StepFrame) -> dict[int, tuple[int, float, list[tuple[int, float]]]]:
    rows, start = {}, 0
    for at, logprob, count in zip(frame.logprob_token, frame.logprob, frame.top_count, strict=True):
        end = start + count
        top = list(zip(frame.top_tokens[start:end], frame.top_logprobs[start:end], strict=True))
        rows[at] = (frame.tokens[at], logprob, top)
        start = end
    return rows


class WorkerPool:
    """Attach streams, opened on the first grant for a worker and kept while it lives."""

    def __init__(self, gateway_id: str) -> None:
        self._gateway_id = gateway_id
        self._links: dict[int, WorkerLink] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """The owner of the streams' tasks."""
        self._tasks = tasks

    def link(self, address: str, incarnation: int) -> WorkerLink:
        """The stream to that incarnation, opened if need be."""
        link = self._links.get(incarnation)
        if link is None or link.lost:
            if self._tasks is None:
                raise RuntimeError("WorkerPool.start was not called")
            link = self._links[incarnation] = WorkerLink(address, incarnation, self._gateway_id)
            self._tasks.create_task(self._run(link), name=f"attach-{address}")
        return link

    async def _run(self, link: WorkerLink) -> None:
        try:
            await link.run()
        finally:
            if self._links.get(link.incarnation) is link:
                del self._links[link.incarnation]
