"""Carries the scheduler's events to the streams they are for, and wakes it when something is due."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import time
from typing import TYPE_CHECKING

from penstock.v1 import dispatch_pb2

from services.common.errors import UnavailableError
from services.common.rpc import Outbox
from services.router.events import Event, ModelChanged, ResendBlocks, TrustChanged, WorkerDropped
from services.router.wire import message_of, update_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.router.metrics import Metrics
    from services.router.scheduler import Scheduler

log = logging.getLogger(__name__)

_TICK_S_MIN = 0.01
"""Timers closer together than this fire together."""
_MODELS_EVERY_S = 0.05
"""A thousand workers that register at once are a few updates, not a thousand."""


class Ended(asyncio.Event):
    """Set when a stream must end though its peer is there; `detail` says why."""

    detail = ""

    def end(self, detail: str) -> None:
        """Ask the stream's handler to end it. The first reason stands."""
        if not self.is_set():
            self.detail = detail
            self.set()


class Connection:
    """One gateway's Dispatch stream. `number` is its name in the scheduler, never used again."""

    def __init__(self, number: int, gateway_id: str, unread_max: int) -> None:
        self.number = number
        self.gateway_id = gateway_id
        self.outbox: Outbox[dispatch_pb2.RouterMessage] = Outbox(unread_max)
        self.ended = Ended()


class Hub:
    """The one owner of the scheduler in this process; every caller is on the event loop.

    Call `scheduler` methods through `tell`, so that their events go out and the ticker learns of new timers.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        metrics: Metrics,
        *,
        unread_max: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.scheduler = scheduler
        self.clock = clock
        self.metrics = metrics
        self._unread_max = unread_max
        self._connections: dict[int, Connection] = {}
        self._draining = False
        self._numbers = 0
        self._workers: dict[int, Ended] = {}
        self._changed_models: dict[str, None] = {}
        self._sleeps_until = math.inf
        self._wake = asyncio.Event()
        self._models_wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()

    def gateways(self) -> int:
        """Connected now."""
        return len(self._connections)

    def connect(self, gateway_id: str, welcome: dispatch_pb2.RouterWelcome) -> Connection:
        """A gateway is there: it hears the welcome, then of every model.

        Raises:
            UnavailableError: this router drains.
        """
        if self._draining:
            raise UnavailableError("this router is shutting down; ask another one")
        self._numbers += 1
        connection = Connection(self._numbers, gateway_id, self._unread_max)
        self._connections[connection.number] = connection
        self._empty.clear()
        self._send(connection, dispatch_pb2.RouterMessage(welcome=welcome))
        for view in self.scheduler.models():
            self._send(connection, update_of(view))
        return connection

    def disconnect(self, connection: Connection) -> None:
        """Its stream is over."""
        del self._connections[connection.number]
        self.tell(self.scheduler.gateway_gone(self.clock(), connection.number))
        if not self._connections:
            self._empty.set()

    def worker_stream(self, incarnation: int, ended: Ended) -> None:
        """`ended` belongs to the worker's stream from now on; that of an older stream is ended by `WorkerDropped`."""
        self._workers[incarnation] = ended

    def worker_stream_over(self, incarnation: int, ended: Ended) -> None:
        """The worker's stream is over. Nothing if a newer one of the same incarnation took its place."""
        if self._workers.get(incarnation) is ended:
            del self._workers[incarnation]
            self.tell(self.scheduler.worker_gone(self.clock(), incarnation))

    def tell(self, events: list[Event]) -> None:
        """Carry events out. Never waits."""
        self.metrics.count(events)
        for event in events:
            if isinstance(event, ModelChanged):
                self._model_changed(event)
            elif isinstance(event, WorkerDropped):
                log.warning("worker dropped", extra={"incarnation": event.incarnation, "detail": event.detail})
                ended = self._workers.pop(event.incarnation, None)
                if ended is not None:
                    ended.end(event.detail)
            elif isinstance(event, TrustChanged):
                self._trust_changed(event)
            elif isinstance(event, ResendBlocks):
                log.info("block events were missing, asked for a snapshot", extra={"incarnation": event.incarnation})
            else:
                connection = self._connections.get(event.gateway)
                if connection is not None:
                    self._send(connection, message_of(event))
        due = self.scheduler.next_due()
        if due is not None and due < self._sleeps_until:
            self._wake.set()

    async def run(self) -> None:
        """The ticker: sleeps until something is due."""
        ticked = -math.inf
        while True:
            due = self.scheduler.next_due()
            self._sleeps_until = math.inf if due is None else max(due, ticked + _TICK_S_MIN)
            if self._sleeps_until <= self.clock():
                ticked = self.clock()
                self.tell(self.scheduler.tick(ticked))
                continue
            self._wake.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if due is None else self._sleeps_until - self.clock()):
                    await self._wake.wait()

    async def run_models(self) -> None:
        """Sends the updates of models whose workers changed; at most so often, the last state always."""
        while True:
            await self._models_wake.wait()
            self._models_wake.clear()
            changed, self._changed_models = self._changed_models, {}
            for model in changed:
                self._send_model(model)
            await asyncio.sleep(_MODELS_EVERY_S)

    async def drain(self) -> None:
        """Reject what waits, then end the gateways' streams once they have read that."""
        self._draining = True
        self.tell(self.scheduler.drain(self.clock()))
        for connection in self._connections.values():
            connection.outbox.close()
        await self._empty.wait()

    def close(self) -> None:
        """End every stream."""
        for connection in self._connections.values():
            connection.ended.end("this router is shutting down")
        for ended in self._workers.values():
            ended.end("this router is shutting down")

    def _model_changed(self, event: ModelChanged) -> None:
        if event.card_changed:
            # At once: a grant in the same batch may be for the new card's workers.
            self._send_model(event.model)
        else:
            self._changed_models[event.model] = None
            self._models_wake.set()

    def _trust_changed(self, event: TrustChanged) -> None:
        extra = {"incarnation": event.incarnation, "precision": event.precision, "recall": event.recall}
        if event.trusted:
            log.info("predicted prefix hits come true again: used for placement", extra=extra)
        else:
            log.warning("predicted prefix hits don't come true: this worker is placed by load alone", extra=extra)

    def _send_model(self, model: str) -> None:
        view = self.scheduler.model(model)
        if view is not None:
            update = update_of(view)
            for connection in self._connections.values():
                self._send(connection, update)

    def _send(self, connection: Connection, message: dispatch_pb2.RouterMessage) -> None:
        try:
            connection.outbox.put(message)
        except BufferError as error:
            self.cut(connection, str(error))

    def cut(self, connection: Connection, detail: str) -> None:
        """End the stream of a gateway that does not read."""
        if not connection.ended.is_set():
            log.warning("gateway cut off", extra={"gateway": connection.gateway_id, "detail": detail})
            self.metrics.gateway_cut()
            connection.ended.end(detail)
