"""Keeps one Register stream to every router, for ever, and reports this worker's load on each.

A report leaves after a step, but at most every `REPORT_S`; at once when idle becomes busy or the other way round; and
at least every `HEARTBEAT_S`, from a timer, so that silence means death. Between the reports go the changes of the
prefix cache (`services.worker.blocks`).
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections import deque
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from penstock.v1 import registry_pb2, registry_pb2_grpc

from services.common import rpc
from services.worker.blocks import BlockFeed, BlockMirror

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from services.worker.engine.base import EngineLoad, KvChange, StepCost

log = logging.getLogger(__name__)

REPORT_S = 0.1
HEARTBEAT_S = 0.5
ANSWER_S = 5.0
"""Seconds that a router has for `Registered`, and for taking a report; so unsent changes are bounded by it too."""
BACKOFF_S_MIN, BACKOFF_S_MAX = 0.1, 3.0
SAMPLES_MAX = 16


Message = registry_pb2.WorkerMessage
Call = grpc.aio.StreamStreamCall[registry_pb2.WorkerMessage, registry_pb2.RegistryMessage]


class RouterBrokenError(Exception):
    """The router doesn't keep the protocol."""


class Link:
    """One router: what it has not been told yet. Fresh for each stream.

    `blocks` is None when this worker doesn't report its prefix cache.
    """

    def __init__(self, clock: Callable[[], float], blocks: BlockFeed | None = None) -> None:
        self._clock = clock
        self._due = False
        self._wake = asyncio.Event()
        self._blocks = blocks
        self._last = clock()
        self._sequence = 0
        self.started: list[int] = []
        self.ended: list[int] = []
        self.costs: deque[StepCost] = deque(maxlen=SAMPLES_MAX)

    def stepped(self) -> None:
        """A step was made: report, unless one has just been sent."""
        if self._clock() - self._last >= REPORT_S:
            self.urge()

    def urge(self) -> None:
        """Report now."""
        self._due = True
        self._wake.set()

    def blocks_changed(self, change: KvChange) -> None:
        """The prefix cache changed so."""
        if self._blocks is not None:
            was_quiet = self._blocks.due_at == math.inf
            self._blocks.changed(change)
            if was_quiet:
                self._wake.set()

    def resend_blocks(self) -> None:
        """The router lost the thread."""
        if self._blocks is not None:
            self._blocks.resend()
            self._wake.set()

    @property
    def is_due(self) -> bool:
        """A report must be sent, heartbeats aside."""
        return self._due

    async def due(self) -> None:
        """Wait until something must be sent."""
        while not self._due and (left := self._next_at() - self._clock()) > 0:
            self._wake.clear()
            try:
                async with asyncio.timeout(left):
                    await self._wake.wait()
            except TimeoutError:
                return  # the heartbeat, or changes that have waited long enough

    def _next_at(self) -> float:
        heartbeat = self._last + HEARTBEAT_S
        return heartbeat if self._blocks is None else min(heartbeat, self._blocks.due_at)

    def messages(self, load: Callable[[], EngineLoad], draining: Callable[[], bool]) -> Iterator[Message]:
        """What must be sent now: a report, or a message about blocks, or both, or nothing."""
        now = self._clock()
        if self._due or now >= self._last + HEARTBEAT_S:
            yield Message(report=self.report(load(), draining()))
        if self._blocks is not None and now >= self._blocks.due_at:
            yield Message(blocks=self._blocks.message(now))

    def report(self, load: EngineLoad, draining: bool) -> registry_pb2.LoadReport:
        """The next report; what it tells is forgotten here."""
        self._due = False
        self._last = self._clock()
        self._sequence += 1
        started, self.started = self.started, []
        ended, self.ended = self.ended, []
        costs = [
            registry_pb2.StepSample(step_ms=cost.step_ms, prefill_tokens=cost.prefill_tokens, running=cost.running)
            for cost in self.costs
        ]
        self.costs.clear()
        return registry_pb2.LoadReport(
            sequence=self._sequence,
            running=load.running,
            waiting=load.waiting,
            free_kv_blocks=load.free_kv_blocks,
            queued_prefill_tokens=load.queued_prefill_tokens,
            leases_started=started,
            leases_ended=ended,
            steps=costs,
            draining=draining,
        )


class Registrar:
    """The links, and the `Listener` that feeds them."""

    def __init__(self, routers: tuple[str, ...], clock: Callable[[], float], *, reports_blocks: bool = False) -> None:
        self._routers = routers
        self._clock = clock
        self._mirror = BlockMirror() if reports_blocks else None
        self._links: list[Link] = []
        self._load: Callable[[], EngineLoad]
        self._registration: Callable[[], registry_pb2.Registration]
        self._draining: Callable[[], bool]

    def bind(
        self,
        load: Callable[[], EngineLoad],
        registration: Callable[[], registry_pb2.Registration],
        draining: Callable[[], bool],
    ) -> None:
        """Where the figures come from; before `run`."""
        self._load, self._registration, self._draining = load, registration, draining

    @property
    def links(self) -> int:
        """Streams to routers, those included that wait for their answer."""
        return len(self._links)

    def lease_started(self, lease: int) -> None:
        """See `hub.Listener`."""
        for link in self._links:
            link.started.append(lease)

    def lease_ended(self, lease: int) -> None:
        """See `hub.Listener`."""
        for link in self._links:
            link.ended.append(lease)

    def stepped(self, cost: StepCost | None) -> None:
        """See `hub.Listener`."""
        for link in self._links:
            if cost is not None:
                link.costs.append(cost)
            link.stepped()

    def turned(self) -> None:
        """See `hub.Listener`."""
        for link in self._links:
            link.urge()

    def blocks_changed(self, change: KvChange) -> None:
        """The engine's prefix cache changed so."""
        if self._mirror is not None:
            change = self._mirror.apply(change)
            for link in self._links:
                link.blocks_changed(change)

    def run(self, tasks: asyncio.TaskGroup) -> None:
        """Serve every router, each in a task of its own."""
        for address in self._routers:
            tasks.create_task(self._keep(address), name=f"register {address}")

    async def _keep(self, address: str) -> None:
        """Register, again after each loss, with a growing and jittered pause."""
        pause, failures = BACKOFF_S_MIN, 0
        while True:
            began = self._clock()
            try:
                await self._serve(address)
            except (grpc.RpcError, RouterBrokenError, TimeoutError) as error:
                reason = error.details() if isinstance(error, grpc.aio.AioRpcError) else str(error) or "no answer"
                if self._clock() - began > BACKOFF_S_MAX:
                    pause, failures = BACKOFF_S_MIN, 0
                level = logging.WARNING if failures == 0 else logging.DEBUG
                log.log(level, "router lost; trying again for ever", extra={"router": address, "reason": reason})
                failures += 1
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, BACKOFF_S_MAX)

    async def _serve(self, address: str) -> None:
        """One stream, until it is lost: always ends with an error."""
        async with rpc.channel(address) as channel:
            stub: registry_pb2_grpc.RegistryAsyncStub = registry_pb2_grpc.RegistryStub(channel)
            call = stub.Register()
            link: Link | None = None
            try:
                link = await self._register(call, address)
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._watch(call, link))
                    await self._report(call, link)
            except* (grpc.RpcError, RouterBrokenError, TimeoutError) as group:
                raise group.exceptions[0] from None
            finally:
                if link is not None:
                    self._links.remove(link)
                call.cancel()

    async def _register(self, call: Call, address: str) -> Link:
        # No await between the list of leases and the new link: no change is missed or doubled.
        registration = self._registration()
        link = self.open_link()
        registration.report.CopyFrom(link.report(self._load(), self._draining()))
        try:
            async with asyncio.timeout(ANSWER_S):
                await call.write(Message(registration=registration))
                answer = await call.read()
            if not isinstance(answer, registry_pb2.RegistryMessage) or not answer.HasField("registered"):
                raise RouterBrokenError("it answered a registration with something else")
        except BaseException:
            self._links.remove(link)
            raise
        log.info("registered", extra={"router": address, "router_id": answer.registered.router_id})
        return link

    def open_link(self) -> Link:
        """A link that hears of every change from now on."""
        link = Link(self._clock, BlockFeed(self._mirror) if self._mirror is not None else None)
        self._links.append(link)
        return link

    async def _report(self, call: Call, link: Link) -> None:
        while True:
            await link.due()
            for message in link.messages(self._load, self._draining):
                async with asyncio.timeout(ANSWER_S):
                    await call.write(message)

    async def _watch(self, call: Call, link: Link) -> None:
        while isinstance(message := await call.read(), registry_pb2.RegistryMessage):
            if message.HasField("resend_blocks"):  # a newer router may say more
                link.resend_blocks()
        raise RouterBrokenError("it closed the stream")
