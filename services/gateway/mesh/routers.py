"""The gateway's side of Dispatch: one stream to every router, leases out of the one that owns the model.

A lost router takes its leases along but no running stream: tokens don't pass through it. Requests that were waiting
there move to the next router and keep their place, because an `Acquire` carries how long it has waited.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import grpc.aio
from penstock.v1 import dispatch_pb2 as pb
from penstock.v1 import dispatch_pb2_grpc

from services.common import rpc
from services.common.errors import (
    ContendedError,
    DeadlineError,
    InvalidRequestError,
    NotFoundError,
    PenstockError,
    UnavailableError,
)
from services.gateway.mesh.backoff import Backoff
from services.gateway.mesh.rendezvous import choose

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable

log = logging.getLogger(__name__)

OUTBOX_MESSAGES_MAX = 65_536


@dataclass(slots=True)
class Ask:
    """What one request wants from a router; `Acquire` without the numbers of the wire."""

    response_id: str
    model: str
    prompt_tokens: int
    max_tokens: int
    choices: int
    priority_class: pb.PriorityClass.ValueType
    tenant: str
    tenant_weight: float
    deadline: float | None
    """Event-loop time of the client's deadline."""
    arrived: float = field(default_factory=time.monotonic)
    attempt: int = 0
    excluded: set[int] = field(default_factory=set)
    block_hashes: bytes = b""
    """16 bytes per whole 16-token block of the prompt."""
    session: str = ""
    """Stable key of the conversation; empty = none."""


@dataclass(slots=True)
class Lease:
    """The right to run one request on one worker, until `release`."""

    link: RouterLink
    stream: int
    """The link's stream that granted it; a router forgets its leases with the stream."""
    request: int
    id: int
    worker: str
    incarnation: int
    matched_tokens: int = 0
    """Of the prompt, as many should be cached on that worker."""
    give_way: Callable[[], bool] | None = None
    """Asked when a request of a higher class wants the place: stops and says yes, or says that a token has come."""
    wanted: bool = False
    """Asked for before `give_way` was there to answer: its owner gives it back first thing."""

    def release(self, outcome: pb.Outcome.ValueType, completion_tokens: int = 0, cached_tokens: int = 0) -> None:
        """Give the lease back."""
        self.link.forget(self)
        self.link.send(
            pb.GatewayMessage(
                release=pb.Release(
                    lease=self.id, completion_tokens=completion_tokens, cached_tokens=cached_tokens, outcome=outcome
                )
            )
        )


class Models(Protocol):
    """Who wants to know which models the routers know."""

    def on_update(self, router: str, update: pb.ModelUpdate) -> None:
        """A router told of a model."""

    def on_router_lost(self, router: str) -> None:
        """A router can't tell any more."""


class LinkLostError(Exception):
    """The stream to the router ended while something waited on it."""


class MovedError(Exception):
    """The router drains: ask another one."""


class RouterLink:
    """One Dispatch stream, kept open for ever by `run`."""

    def __init__(self, address: str, gateway_id: str, models: Models) -> None:
        self.address = address
        self.live = False
        self._gateway_id = gateway_id
        self._models = models
        self._numbers = itertools.count(1)
        self._outbox: rpc.Outbox[pb.GatewayMessage] = rpc.Outbox(OUTBOX_MESSAGES_MAX)
        self._waits: dict[int, asyncio.Future[Lease]] = {}
        self._held: dict[int, Lease] = {}
        self._stream = 0
        self._call: grpc.aio.StreamStreamCall[pb.GatewayBatch, pb.RouterBatch] | None = None
        self._handlers: dict[str, Callable[[Any], None]] = {
            "granted": self._granted, "rejected": self._rejected, "overflow": self._overflowed,
            "preempt": self._preempted, "model": self._told, "queued": lambda _: None,
        }  # fmt: skip

    async def run(self, changed: Callable[[], None]) -> None:
        """Hold the stream open; calls `changed` whenever `live` changes. Ends only by cancellation."""
        backoff = Backoff()
        async with rpc.channel(self.address) as channel:
            stub = dispatch_pb2_grpc.DispatchStub(channel)
            while True:
                self._outbox = rpc.Outbox(OUTBOX_MESSAGES_MAX)
                self._stream += 1
                try:
                    await self._hold(stub.Dispatch(self._requests(self._outbox)), backoff, changed)
                except grpc.aio.AioRpcError as error:
                    log.info("router link lost", extra={"router": self.address, "reason": error.details()})
                finally:
                    self.live = False
                    self._lose()
                    self._models.on_router_lost(self.address)
                    changed()
                await asyncio.sleep(backoff.next_s())

    async def _hold(
        self,
        call: grpc.aio.StreamStreamCall[pb.GatewayBatch, pb.RouterBatch],
        backoff: Backoff,
        changed: Callable[[], None],
    ) -> None:
        self._call = call
        try:
            async for batch in call:
                for message in batch.messages:
                    kind = message.WhichOneof("message")
                    if kind == "welcome":
                        self.live = True
                        backoff.reset()
                        changed()
                    elif kind is not None:
                        self._handlers[kind](getattr(message, kind))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            log.warning("router link cut: it reads nothing", extra={"router": self.address})  # by `send`
        finally:
            self._outbox.close()
            call.cancel()

    async def _requests(self, outbox: rpc.Outbox[pb.GatewayMessage]) -> AsyncIterator[pb.GatewayBatch]:
        yield pb.GatewayBatch(messages=[pb.GatewayMessage(hello=pb.GatewayHello(gateway_id=self._gateway_id))])
        while messages := await outbox.take():
            yield pb.GatewayBatch(messages=messages)

    def _lose(self) -> None:
        self._held.clear()
        waits, self._waits = self._waits, {}
        for wait in waits.values():
            if not wait.done():
                wait.set_exception(LinkLostError(self.address))

    def send(self, message: pb.GatewayMessage) -> None:
        """Queue a message; dropped when the link is down (the router forgot us with the stream)."""
        if not self.live:
            return
        try:
            self._outbox.put(message)
        except BufferError:  # the router stopped reading: its loss frees what waits there
            if self._call is not None:
                self._call.cancel()

    async def acquire(self, ask: Ask) -> Lease:
        """Wait for a lease.

        Raises:
            LinkLostError: the router went away meanwhile.
            MovedError: it drains.
            PenstockError: it refused; the class says why.
        """
        request = next(self._numbers)
        now = time.monotonic()
        left_ms = 0 if ask.deadline is None else max(1, int((ask.deadline - now) * 1000))
        self.send(
            pb.GatewayMessage(
                acquire=pb.Acquire(
                    request=request, response_id=ask.response_id, attempt=ask.attempt, model=ask.model,
                    prompt_tokens=ask.prompt_tokens, max_tokens=ask.max_tokens, choices=ask.choices,
                    priority_class=ask.priority_class, tenant=ask.tenant, tenant_weight=ask.tenant_weight,
                    deadline_ms=left_ms, waited_ms=int((now - ask.arrived) * 1000), excluded_workers=ask.excluded,
                    block_hashes=ask.block_hashes, session=ask.session,
                )
            )
        )  # fmt: skip
        return await self._wait(request)

    async def give_back(self, lease: Lease, *, yielded: bool) -> Lease:
        """The worker refused `lease`, or it `yielded`: back to the old place in the queue; the next lease.

        Raises as `acquire`.
        """
        if not self.live or lease.stream != self._stream:
            raise LinkLostError(self.address)
        self.forget(lease)
        if yielded:
            self.send(pb.GatewayMessage(yielded=pb.Yielded(lease=lease.id)))
        else:
            self.send(pb.GatewayMessage(bounced=pb.Bounced(lease=lease.id)))
        return await self._wait(lease.request)

    def forget(self, lease: Lease) -> None:
        """It is over: nobody can want it any more."""
        if self._held.get(lease.id) is lease:
            del self._held[lease.id]

    async def _wait(self, request: int) -> Lease:
        wait: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waits[request] = wait
        try:
            return await wait
        except asyncio.CancelledError:
            if wait.done() and not wait.cancelled() and wait.exception() is None:
                wait.result().release(pb.CANCELLED)
            else:
                self.send(pb.GatewayMessage(withdraw=pb.Withdraw(request=request)))
            raise
        finally:
            self._waits.pop(request, None)

    def _told(self, update: pb.ModelUpdate) -> None:
        self._models.on_update(self.address, update)

    def _granted(self, granted: pb.Granted) -> None:
        lease = Lease(
            self, self._stream, granted.request, granted.lease, granted.worker, granted.incarnation,
            granted.matched_tokens,
        )  # fmt: skip
        wait = self._waits.get(granted.request)
        if wait is None or wait.done():  # withdrawn while the grant was on its way
            lease.release(pb.CANCELLED)
        else:
            self._held[lease.id] = lease
            wait.set_result(lease)

    def _rejected(self, rejected: pb.Rejected) -> None:
        wait = self._waits.get(rejected.request)
        if wait is not None and not wait.done():
            wait.set_exception(_refusal(rejected))

    def _overflowed(self, overflow: pb.Overflow) -> None:
        wait = self._waits.get(overflow.request)
        if wait is not None and not wait.done():
            wait.set_exception(UnavailableError(f"the router sent this to {overflow.queue}, which this gateway lacks"))

    def _preempted(self, preempt: pb.Preempt) -> None:
        lease = self._held.get(preempt.lease)
        if lease is not None and lease.give_way is None:
            lease.wanted = True  # its owner hasn't run since the grant, and will give it back first thing
        elif lease is None or lease.give_way is None or not lease.give_way():
            self.send(pb.GatewayMessage(refused=pb.Refused(lease=preempt.lease)))


def _refusal(rejected: pb.Rejected) -> Exception:
    retry = rejected.retry_after_ms / 1000 if rejected.retry_after_ms else None
    reason, detail = rejected.reason, rejected.detail
    errors: dict[int, Callable[[], Exception]] = {
        pb.QUEUE_FULL: lambda: ContendedError(
            detail or "every worker is busy and the queue is full", retry_after_s=retry or 1.0
        ),
        pb.BOUNCED_TOO_OFTEN: lambda: ContendedError(detail or "every worker is full", retry_after_s=retry or 1.0),
        pb.NO_WORKERS: lambda: UnavailableError(
            detail or "no worker serves this model now", retry_after_s=retry or 5.0
        ),
        pb.DEADLINE: lambda: DeadlineError(
            detail or "the deadline would pass before a worker is free", retry_after_s=retry
        ),
        pb.UNKNOWN_MODEL: lambda: NotFoundError(detail or "no such model", param="model", code="model_not_found"),
        pb.TOO_LARGE: lambda: InvalidRequestError(
            detail or "no worker can ever hold this request", param="max_tokens", code="context_length_exceeded"
        ),
        pb.DRAINING: lambda: MovedError(),
    }
    make = errors.get(reason)
    return make() if make else PenstockError(f"the router refused: {detail or reason}")


class RouterPool:
    """All routers of the mesh."""

    def __init__(
        self,
        addresses: Iterable[str],
        gateway_id: str,
        models: Models,
        on_change: Callable[[], None],
        *,
        wait_s: float,
    ) -> None:
        self._links = {address: RouterLink(address, gateway_id, models) for address in addresses}
        self._on_change = on_change
        self._wait_s = wait_s
        self._change = asyncio.Event()

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Connect to every router and stay connected."""
        for link in self._links.values():
            tasks.create_task(link.run(self._changed), name=f"router-{link.address}")

    @property
    def live(self) -> int:
        """Routers reachable now."""
        return sum(link.live for link in self._links.values())

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
        self._on_change()

    async def acquire(self, ask: Ask) -> Lease:
        """A lease for `ask` from the router that owns its model, moving on when that router goes away.

        Raises:
            DeadlineError: `ask.deadline` passed while waiting.
            PenstockError: a router refused, or none was reachable for `wait_s` seconds.
        """
        try:
            async with asyncio.timeout_at(ask.deadline):
                return await self._acquire(ask)
        except TimeoutError:
            raise DeadlineError("the deadline passed while the request waited for a worker") from None

    async def _acquire(self, ask: Ask) -> Lease:
        draining: set[str] = set()
        while True:
            link = await self._owner(ask.model, draining)
            try:
                return await link.acquire(ask)
            except LinkLostError:
                continue
            except MovedError:
                draining.add(link.address)

    async def again(self, lease: Lease, ask: Ask, *, yielded: bool = False) -> Lease:
        """Another lease after the worker refused this one, or it `yielded` to a higher class. Raises as `acquire`."""
        try:
            async with asyncio.timeout_at(ask.deadline):
                try:
                    return await lease.link.give_back(lease, yielded=yielded)
                except (LinkLostError, MovedError):
                    return await self._acquire(ask)
        except TimeoutError:
            raise DeadlineError("the deadline passed while the request waited for a worker") from None

    async def _owner(self, model: str, draining: set[str]) -> RouterLink:
        give_up = time.monotonic() + self._wait_s
        while True:
            draining.intersection_update(address for address, link in self._links.items() if link.live)
            live = [address for address, link in self._links.items() if link.live and address not in draining]
            chosen = choose(model, live)
            if chosen is not None:
                return self._links[chosen]
            left = give_up - time.monotonic()
            try:
                async with asyncio.timeout(max(left, 0)):
                    await self._change.wait()
            except TimeoutError:
                raise UnavailableError(
                    "no router is reachable: is one running, and do PENSTOCK_ROUTERS name it?",
                    retry_after_s=math.ceil(self._wait_s) or 1,
                ) from None
