"""The worker's gRPC face: the Attach stream of step frames, and the model card.

A gateway's frames wait in its own `FrameOutbox`, bounded in bytes and age. The step loop only ever puts; a gateway that
doesn't read is disconnected and its sequences end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from penstock.v1 import engine_pb2, engine_pb2_grpc

from services.common import rpc
from services.common.errors import NotFoundError
from services.common.frames import ATTACH_SERVICE
from services.worker.hub import Gateway

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from services.common.card import ModelCard
    from services.worker.hub import Hub

log = logging.getLogger(__name__)

HELLO_S = 10.0
"""Seconds that a new stream has for its first message."""


class BehindError(Exception):
    """The gateway left too much unread."""


class StreamRefusedError(Exception):
    """The stream breaks the contract; carries the status that says so."""

    def __init__(self, code: grpc.StatusCode, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


class FrameOutbox:
    """Encoded frames on their way to one gateway: at most `bytes_max` unread, none older than `age_s_max`."""

    def __init__(self, bytes_max: int, age_s_max: float) -> None:
        self._bytes_max, self._age_s_max = bytes_max, age_s_max
        self._frames: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._over = self._closed = False
        self._wake = asyncio.Event()
        self._writing: asyncio.Timeout | None = None
        self._loop = asyncio.get_running_loop()

    def put(self, frame: bytes) -> None:
        """Queue a frame; never waits. Beyond the bound it ends `pump` instead."""
        if self._over:
            return
        self._bytes += len(frame)
        if self._bytes > self._bytes_max:
            self._over = True
            self._frames.clear()
            if self._writing is not None:
                self._writing.reschedule(self._loop.time())
        else:
            self._frames.append((self._loop.time() + self._age_s_max, frame))
        self._wake.set()

    async def pump(self, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Write frames in order, until the last one after `close`.

        Raises:
            BehindError: the gateway left too many bytes unread, or a frame for too long.
        """
        while True:
            while not self._frames:
                if self._over:
                    raise self._behind()
                if self._closed:
                    return
                self._wake.clear()
                await self._wake.wait()
            due, frame = self._frames[0]
            try:
                async with asyncio.timeout_at(due) as self._writing:
                    await write(frame)
            except TimeoutError as error:
                raise self._behind() from error
            self._writing = None
            if self._frames:
                self._frames.popleft()
                self._bytes -= len(frame)

    def close(self) -> None:
        """End `pump` after what is queued."""
        self._closed = True
        self._wake.set()

    def _behind(self) -> BehindError:
        limit = f"over {self._bytes_max} bytes" if self._over else f"a frame for over {self._age_s_max} s"
        return BehindError(f"the gateway left {limit} unread")


AttachContext = grpc.aio.ServicerContext[engine_pb2.AttachBatch, bytes]


class AttachServicer:
    """`Attach`: submits and aborts in, frames out."""

    def __init__(self, hub: Hub, incarnation: int, lag_bytes_max: int, lag_s_max: float) -> None:
        self._hub = hub
        self._incarnation = incarnation
        self._lag_bytes_max, self._lag_s_max = lag_bytes_max, lag_s_max
        self._open: set[FrameOutbox] = set()
        self.left = asyncio.Event()
        """Set when a stream ends."""

    @property
    def gateways(self) -> int:
        """Streams that are open."""
        return len(self._open)

    async def close(self) -> None:
        """End every stream after the frames that wait; bounded by the age that they may reach."""
        for outbox in self._open:
            outbox.close()
        while self._open:
            self.left.clear()
            await self.left.wait()

    def handler(self) -> grpc.GenericRpcHandler:
        """The method, registered by hand because its answers are FlatBuffers."""
        method = grpc.stream_stream_rpc_method_handler(
            self.attach,
            request_deserializer=engine_pb2.AttachBatch.FromString,
            response_serializer=bytes,
        )
        return grpc.method_handlers_generic_handler(ATTACH_SERVICE, {"Attach": method})

    async def attach(self, batches: AsyncIterator[engine_pb2.AttachBatch], context: AttachContext) -> None:
        """One gateway, until it leaves, breaks the contract or falls behind."""
        outbox = FrameOutbox(self._lag_bytes_max, self._lag_s_max)
        gateway = Gateway(outbox)
        self._open.add(outbox)
        try:
            await self._exchange(gateway, outbox, batches, context)
            return
        except StreamRefusedError as error:
            code, detail = error.code, error.detail
        except BehindError as error:
            code, detail = grpc.StatusCode.RESOURCE_EXHAUSTED, str(error)
        finally:
            self._open.discard(outbox)
            self._hub.close(gateway)
            self.left.set()
        log.warning("gateway disconnected", extra={"reason": detail})
        # Waits until the gateway takes it or its connection is closed (keepalive); all that it held is free already.
        with contextlib.suppress(grpc.aio.InternalError):  # the connection is gone: nobody to tell
            await context.abort(code, detail)

    async def _exchange(
        self,
        gateway: Gateway,
        outbox: FrameOutbox,
        batches: AsyncIterator[engine_pb2.AttachBatch],
        context: AttachContext,
    ) -> None:
        batch = await self._hello(batches)
        log.info("gateway attached", extra={"gateway": batch.hello.gateway_id[:64]})
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read(gateway, outbox, batch, batches))
                await outbox.pump(context.write)
                reader.cancel()
        except* (StreamRefusedError, BehindError) as group:
            raise group.exceptions[0] from None

    async def _read(
        self,
        gateway: Gateway,
        outbox: FrameOutbox,
        batch: engine_pb2.AttachBatch,
        batches: AsyncIterator[engine_pb2.AttachBatch],
    ) -> None:
        self._hub.receive(gateway, batch.submits, batch.aborts)
        async for later in batches:
            if later.HasField("hello"):
                raise StreamRefusedError(grpc.StatusCode.FAILED_PRECONDITION, "hello: only in the first batch")
            self._hub.receive(gateway, later.submits, later.aborts)
        outbox.close()  # the gateway has nothing more to say: it gets what is queued, and the rest is aborted

    async def _hello(self, batches: AsyncIterator[engine_pb2.AttachBatch]) -> engine_pb2.AttachBatch:
        try:
            async with asyncio.timeout(HELLO_S):
                first = await anext(batches)
        except (TimeoutError, StopAsyncIteration):
            raise StreamRefusedError(
                grpc.StatusCode.FAILED_PRECONDITION, "hello: the stream had no first batch"
            ) from None
        if not first.HasField("hello"):
            raise StreamRefusedError(grpc.StatusCode.FAILED_PRECONDITION, "hello: missing in the first batch")
        if first.hello.incarnation != self._incarnation:
            raise StreamRefusedError(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"hello.incarnation: this worker is {self._incarnation}, not {first.hello.incarnation}",
            )
        return first


class CardServicer(engine_pb2_grpc.EngineServicer):
    """`FetchModelCard`."""

    def __init__(self, card: ModelCard) -> None:
        self._card = card

    async def FetchModelCard(
        self,
        request: engine_pb2.FetchModelCardRequest,
        context: grpc.aio.ServicerContext[engine_pb2.FetchModelCardRequest, engine_pb2.ModelCardPiece],
    ) -> AsyncIterator[engine_pb2.ModelCardPiece]:
        """The card, when it is the one asked for."""
        if request.card_hash != self._card.hash:
            await rpc.abort(
                context,
                NotFoundError(f"this worker has the card {self._card.hash}, not {request.card_hash[:64]!r}"),
            )
        for file, data in self._card.pieces():
            yield engine_pb2.ModelCardPiece(file=file, data=data)
