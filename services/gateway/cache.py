"""The exact response cache as the gateway uses it: token ids and ends of responses, by all that shapes them.

A cached answer is replayed through the same `Choice` code as a fresh one, so its text and ids are the same. The cache
is never needed: when its service is slow or gone, requests go on as misses and
`penstock_response_cache{result="degraded"}` says so. Of identical requests at once one generates (it leads, by a lease
of the cache service, across gateways) and the others wait for its answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn

import grpc.aio
import orjson
from penstock.v1 import cache_pb2, cache_pb2_grpc

from services.common import rpc

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from services.gateway.metrics import Metrics

log = logging.getLogger(__name__)

GET_TIMEOUT_S = 0.1
PUT_TIMEOUT_S = 2.0
PUTS_MAX = 64
"""Writes under way at once; more are dropped, for a lost write costs a hit and nothing else."""
BACKGROUND_MAX = 4096
"""The same for all that runs in the background: what is dropped beyond it ends by itself."""
LEASE_S = 5.0
"""A leader that is heard of no more is followed by the next after so long."""
RENEWALS_MAX = 4096
WAIT_S_MAX = 10.0
"""Longest wait for the answer of another request."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class CachedChoice:
    """One choice: its token ids and why it ended (`stop`, `length`)."""

    tokens: list[int]
    reason: str


@dataclass(frozen=True, slots=True)
class LookUp:
    """What the cache said."""

    found: list[CachedChoice] | None = None
    shared: bool = False
    """Found after waiting for another request's answer."""
    leads: bool = False
    """This request makes it for all who wait."""


class ResponseCache:
    """Client of the cache service."""

    def __init__(self, address: str, metrics: Metrics) -> None:
        self._channel = rpc.channel(address)
        self._stub = cache_pb2_grpc.CacheStub(self._channel)
        self._metrics = metrics
        self._tasks: asyncio.TaskGroup | None = None
        self._leads: dict[bytes, str] = {}
        self._running = 0
        self._degraded = False

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """What runs in the background lives in `tasks`."""
        self._tasks = tasks
        tasks.create_task(self._renew(), name="cache-leases")

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def get_or_lead(self, key: bytes, owner: str, deadline: float | None) -> LookUp:
        """The response under `key`, or who makes it. While another request does, waits: to `deadline` (event-loop
        time), and no longer than `WAIT_S_MAX`. One that waited in vain makes its own.

        Whoever leads must `put` or `release`.
        """
        answer = await self._ask(key, owner, 0.0)
        waited = answer is not None and answer.outcome == cache_pb2.GetOrLeaseResponse.WAIT
        if waited:
            left_s = WAIT_S_MAX if deadline is None else min(WAIT_S_MAX, deadline - time.monotonic())
            answer = await self._ask(key, owner, max(0.001, left_s))
        if answer is None:
            return LookUp()
        if answer.outcome == cache_pb2.GetOrLeaseResponse.FOUND:
            return self._found(answer.value, shared=waited)
        leads = answer.outcome == cache_pb2.GetOrLeaseResponse.LEAD
        if leads:
            self._leads[key] = owner
        if answer.degraded:
            self._degrade("a tier of the cache service is out of reach")
        else:
            self._degraded = False
            self._metrics.cache.labels("miss").inc()
        return LookUp(leads=leads)

    def _found(self, value: bytes, *, shared: bool) -> LookUp:
        try:
            found = _parse(value)
        except ValueError as error:
            self._degrade(str(error))
            return LookUp()
        self._degraded = False
        self._metrics.cache.labels("shared" if shared else "hit").inc()
        return LookUp(found, shared=shared)

    async def _ask(self, key: bytes, owner: str, wait_s: float) -> cache_pb2.GetOrLeaseResponse | None:
        """One call, held by the service for up to `wait_s`; None = no answer."""
        request = cache_pb2.GetOrLeaseRequest(
            key=key, owner=owner.encode(), lease_ms=int(LEASE_S * 1000), wait_ms=int(wait_s * 1000)
        )
        answer: cache_pb2.GetOrLeaseResponse | None = None
        try:
            answer = await self._stub.GetOrLease(request, timeout=GET_TIMEOUT_S + wait_s)
        except grpc.aio.AioRpcError as error:
            self._degrade(f"{error.code().name}: {error.details()}")
        finally:
            if answer is None:  # the lease may have come, and nobody heard of it
                self._in_background(self._release(key, owner))
        return answer

    def release(self, key: bytes, owner: str) -> None:
        """There will be no answer: the next who waits makes it. Nothing where `owner` does not lead."""
        if self._leads.get(key) == owner:
            del self._leads[key]
            self._in_background(self._release(key, owner))

    async def _release(self, key: bytes, owner: str) -> None:
        request = cache_pb2.ReleaseLeaseRequest(key=key, owner=owner.encode())
        try:
            await self._stub.ReleaseLease(request, timeout=PUT_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:  # then it ends by itself
            self._degrade(f"{error.code().name}: {error.details()}")

    async def _renew(self) -> NoReturn:
        """The heartbeat of what this gateway leads, in one call."""
        while True:
            await asyncio.sleep(LEASE_S / 3)
            leads = list(islice(self._leads.items(), RENEWALS_MAX))
            if not leads:
                continue
            leases = [cache_pb2.RenewLeasesRequest.Lease(key=key, owner=owner.encode()) for key, owner in leads]
            request = cache_pb2.RenewLeasesRequest(leases=leases, lease_ms=int(LEASE_S * 1000))
            try:
                await self._stub.RenewLeases(request, timeout=LEASE_S / 3)
            except grpc.aio.AioRpcError as error:
                self._degrade(f"{error.code().name}: {error.details()}")

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        """Drops `work` when too much is under way, or this gateway is ending."""
        if self._tasks is None or self._running >= BACKGROUND_MAX:
            work.close()
            return
        self._running += 1
        try:
            self._tasks.create_task(self._counted(work), name="cache")
        except RuntimeError:  # the group is shutting down
            self._running -= 1
            work.close()

    async def _counted(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._running -= 1

    def put(self, key: bytes, owner: str, choices: list[CachedChoice]) -> None:
        """Store in the background; dropped when too many writes are under way. Ends the lease of `owner`."""
        if self._running >= PUTS_MAX:
            self.release(key, owner)
            return
        value = orjson.dumps({"v": _FORMAT, "choices": [[each.tokens, each.reason] for each in choices]})
        self._in_background(self._put(key, owner, value))

    async def _put(self, key: bytes, owner: str, value: bytes) -> None:
        try:
            await self._stub.Put(cache_pb2.PutRequest(key=key, value=value), timeout=PUT_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self._degrade(f"{error.code().name}: {error.details()}")
            self.release(key, owner)
        finally:
            if self._leads.get(key) == owner:
                del self._leads[key]

    def _degrade(self, reason: str) -> None:
        self._metrics.cache.labels("degraded").inc()
        if not self._degraded:
            self._degraded = True
            log.warning("response cache degraded: answers go on uncached", extra={"reason": reason})


def _parse(value: bytes) -> list[CachedChoice]:
    """Read a stored value; ValueError when it is none of ours."""
    data = orjson.loads(value)
    if not isinstance(data, dict) or data.get("v") != _FORMAT or not isinstance(data.get("choices"), list):
        raise ValueError("a cached response of another format")
    return [_choice(entry) for entry in data["choices"]]


def _choice(entry: object) -> CachedChoice:
    if isinstance(entry, list) and len(entry) == 2:
        tokens, reason = entry
        if isinstance(tokens, list) and isinstance(reason, str) and all(_is_token(token) for token in tokens):
            return CachedChoice(tokens, reason)
    raise ValueError("a cached response with a broken choice")


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**32
