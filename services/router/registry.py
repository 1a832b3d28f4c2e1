"""The Registry servicer: one stream per worker; its end is the worker's death."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from penstock.v1 import registry_pb2, registry_pb2_grpc

from services.common.errors import InvalidRequestError, PenstockError
from services.router.events import ResendBlocks
from services.router.hub import Ended
from services.router.prefix.feed import BlockStreamError
from services.router.streams import refuse, until_ended
from services.router.wire import blocks_of, registration_of, report_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from typing import Any

    import grpc.aio

    from services.router.hub import Hub
    from services.router.prefix.feed import BlockUpdate

log = logging.getLogger(__name__)

_WRITE_S = 10.0
"""A worker that takes nothing for so long while its own messages are read is broken."""
_RESEND = registry_pb2.RegistryMessage(resend_blocks=registry_pb2.ResendBlocks())


class RegistryServicer(registry_pb2_grpc.RegistryServicer):
    """Translates between a worker's stream and the hub."""

    def __init__(self, hub: Hub, registered: registry_pb2.Registered) -> None:
        self._hub = hub
        self._registered = registered

    async def Register(  # type: ignore[override]  # mypy-protobuf types the synchronous API
        self,
        request_iterator: AsyncIterator[registry_pb2.WorkerMessage],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        """Serve one worker until it closes, falls silent, is replaced or breaks the contract."""
        try:
            await self._serve(request_iterator, context)
        except PenstockError as error:
            log.info("registry stream ended", extra={"detail": error.message, "peer": context.peer()})
            await refuse(context, error)

    async def _serve(
        self, messages: AsyncIterator[registry_pb2.WorkerMessage], context: grpc.aio.ServicerContext[Any, Any]
    ) -> None:
        first = await anext(messages, None)
        if first is None:
            return
        if first.WhichOneof("message") != "registration":
            raise InvalidRequestError("the first message of a Register stream is `registration`", param="message")
        info = registration_of(first.registration)
        hub, ended = self._hub, Ended()
        hub.tell(hub.scheduler.worker_registered(hub.clock(), info))
        hub.worker_stream(info.incarnation, ended)
        identity = {"worker": info.worker_id, "incarnation": info.incarnation, "address": info.address}
        log.info("worker registered", extra={**identity, "models": list(info.models)})
        try:
            await context.write(registry_pb2.RegistryMessage(registered=self._registered))
            await until_ended(ended, self._read(info.incarnation, messages, context))
        finally:
            hub.worker_stream_over(info.incarnation, ended)
            log.info("worker stream over", extra=identity)

    async def _read(
        self,
        incarnation: int,
        messages: AsyncIterator[registry_pb2.WorkerMessage],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> None:
        hub = self._hub
        async for message in messages:
            match message.WhichOneof("message"):
                case "report":
                    hub.tell(hub.scheduler.worker_reported(hub.clock(), incarnation, report_of(message.report)))
                case "blocks":
                    if self._take_blocks(incarnation, blocks_of(message.blocks)):
                        async with asyncio.timeout(_WRITE_S):
                            await context.write(_RESEND)
                case _:
                    detail = "after the registration only reports and block events follow"
                    raise InvalidRequestError(detail, param="message")

    def _take_blocks(self, incarnation: int, update: BlockUpdate) -> bool:
        """Whether the worker must send a snapshot."""
        hub = self._hub
        try:
            events = hub.scheduler.worker_blocks(hub.clock(), incarnation, update)
        except BlockStreamError as error:
            raise InvalidRequestError(str(error), param="blocks") from error
        hub.tell(events)
        return any(isinstance(event, ResendBlocks) for event in events)
