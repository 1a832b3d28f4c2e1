"""The Dispatch servicer: one stream per gateway."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.v1 import dispatch_pb2, dispatch_pb2_grpc

from services.common.errors import InvalidRequestError, PenstockError
from services.router.ledger import DuplicateRequestError
from services.router.streams import refuse, until_ended
from services.router.wire import request_of, usage_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    import grpc.aio

    from services.router.events import Event
    from services.router.hub import Connection, Hub

log = logging.getLogger(__name__)


class DispatchServicer(dispatch_pb2_grpc.DispatchServicer):
    """Translates between a gateway's stream and the hub."""

    def __init__(self, hub: Hub, welcome: dispatch_pb2.RouterWelcome, *, stall_s: float) -> None:
        self._hub = hub
        self._welcome = welcome
        self._stall_s = stall_s

    async def Dispatch(  # type: ignore[override]  # mypy-protobuf types the synchronous API
        self,
        request_iterator: AsyncIterator[dispatch_pb2.GatewayBatch],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """Serve one gateway until it closes, breaks the contract, or doesn't read."""
        try:
            await self._serve(request_iterator, context)
        except PenstockError as error:
            log.info("dispatch stream refused", extra={"detail": error.message, "peer": context.peer()})
            await refuse(context, error)

    async def _serve(
        self, batches: AsyncIterator[dispatch_pb2.GatewayBatch], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        first = await anext(batches, None)
        if first is None:
            return
        if not first.messages or first.messages[0].WhichOneof("message") != "hello":
            raise InvalidRequestError("the first message of a Dispatch stream is `hello`", param="messages[0]")
        gateway_id = first.messages[0].hello.gateway_id
        if not gateway_id:
            raise InvalidRequestError("a gateway needs an id", param="hello.gateway_id")
        del first.messages[0]
        connection = self._hub.connect(gateway_id, self._welcome)
        log.info("gateway connected", extra={"gateway": gateway_id})
        try:
            await until_ended(
                connection.ended, self._read(connection, first, batches), self._write(connection, context)
            )
        finally:
            self._hub.disconnect(connection)
            log.info("gateway gone", extra={"gateway": gateway_id})

    async def _read(
        self,
        connection: Connection,
        batch: dispatch_pb2.GatewayBatch,
        batches: AsyncIterator[dispatch_pb2.GatewayBatch],
    ) -> None:
        self._take(connection, batch)
        async for later in batches:
            self._take(connection, later)

    async def _write(self, connection: Connection, context: grpc.aio.ServicerContext[Any, Any]) -> None:
        while messages := await connection.outbox.take():
            try:
                async with asyncio.timeout(self._stall_s):
                    await context.write(dispatch_pb2.RouterBatch(messages=messages))
            except TimeoutError:
                self._hub.cut(connection, f"the peer took nothing for {self._stall_s:g} s")
                return

    def _take(self, connection: Connection, batch: dispatch_pb2.GatewayBatch) -> None:
        for index, message in enumerate(batch.messages):
            kind = message.WhichOneof("message")
            try:
                events = self._decide(connection.number, kind, message)
            except DuplicateRequestError as error:
                raise InvalidRequestError(str(error), param=f"messages[{index}].acquire.request") from error
            self._hub.tell(events)

    def _decide(self, gateway: int, kind: str | None, message: dispatch_pb2.GatewayMessage) -> list[Event]:
        scheduler, now = self._hub.scheduler, self._hub.clock()
        match kind:
            case "acquire":
                return scheduler.acquire(now, request_of(gateway, message.acquire, now))
            case "release":
                return scheduler.release(now, gateway, message.release.lease, usage_of(message.release))
            case "withdraw":
                return scheduler.withdraw(now, gateway, message.withdraw.request)
            case "bounced":
                return scheduler.bounced(now, gateway, message.bounced.lease)
            case "yielded":
                self._hub.metrics.preempt_answered("yielded")
                return scheduler.yielded(now, gateway, message.yielded.lease)
            case "refused":
                self._hub.metrics.preempt_answered("refused")
                return scheduler.refused(now, gateway, message.refused.lease)
            case "hello":
                raise InvalidRequestError("`hello` is the first message of a stream, and only that", param="hello")
            case _:
                raise InvalidRequestError("an empty or unknown message", param="messages")
