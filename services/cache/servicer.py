"""The gRPC face of a store."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from penstock.v1 import cache_pb2, cache_pb2_grpc

from services.cache.limits import RENEWALS_MAX, Limits, check_key, check_owner, lease_s, wait_s
from services.common.errors import InvalidRequestError, PenstockError
from services.common.rpc import abort

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import grpc.aio

    from services.cache.leases import Leases
    from services.cache.store import Store, StoreStats

SERVICE_NAME = cache_pb2.DESCRIPTOR.services_by_name["Cache"].full_name


class CacheServicer(cache_pb2_grpc.CacheServicer):
    """`penstock.v1.Cache` over a `Store`.

    Args:
        store: where entries are.
        tiers: what it is made of, from the nearest to the farthest, for `Stats`.
        leases: who makes what is missing.
        limits: what may be asked for.
        clock: seconds, that of `leases`.
    """

    def __init__(
        self,
        store: Store,
        tiers: Sequence[Store],
        leases: Leases,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._tiers = tiers
        self._leases = leases
        self._limits = limits
        self._clock = clock

    async def Get(
        self,
        request: cache_pb2.GetRequest,
        context: grpc.aio.ServicerContext[cache_pb2.GetRequest, cache_pb2.GetResponse],
    ) -> cache_pb2.GetResponse:
        """Look a key up."""
        try:
            check_key(request.key)
        except PenstockError as error:
            await abort(context, error)
        value = await self._store.get(request.key)
        return cache_pb2.GetResponse(found=value is not None, value=value or b"", degraded=not self._store.up)

    async def Put(
        self,
        request: cache_pb2.PutRequest,
        context: grpc.aio.ServicerContext[cache_pb2.PutRequest, cache_pb2.PutResponse],
    ) -> cache_pb2.PutResponse:
        """Keep a value."""
        try:
            check_key(request.key)
            self._limits.check_value(request.value)
            ttl_s = self._limits.lifetime_s(request.ttl_s)
        except PenstockError as error:
            await abort(context, error)
        stored = await self._store.put(request.key, request.value, ttl_s)
        self._leases.fulfilled(request.key)
        return cache_pb2.PutResponse(stored=stored)

    async def Delete(
        self,
        request: cache_pb2.DeleteRequest,
        context: grpc.aio.ServicerContext[cache_pb2.DeleteRequest, cache_pb2.DeleteResponse],
    ) -> cache_pb2.DeleteResponse:
        """Forget a key."""
        try:
            check_key(request.key)
        except PenstockError as error:
            await abort(context, error)
        return cache_pb2.DeleteResponse(deleted=await self._store.delete(request.key))

    async def Stats(
        self,
        request: cache_pb2.StatsRequest,
        context: grpc.aio.ServicerContext[cache_pb2.StatsRequest, cache_pb2.StatsResponse],
    ) -> cache_pb2.StatsResponse:
        """How full it is."""
        stats = await self._store.stats()
        return cache_pb2.StatsResponse(
            entries=stats.entries,
            bytes=stats.bytes,
            max_bytes=stats.bytes_max,
            hits=stats.hits,
            misses=stats.misses,
            evictions=stats.evictions,
            store=self._store.name,
            tiers=[_tier(tier, await tier.stats()) for tier in self._tiers],
        )

    async def GetOrLease(
        self,
        request: cache_pb2.GetOrLeaseRequest,
        context: grpc.aio.ServicerContext[cache_pb2.GetOrLeaseRequest, cache_pb2.GetOrLeaseResponse],
    ) -> cache_pb2.GetOrLeaseResponse:
        """The value, or the lease, or the word that another holds it."""
        try:
            check_key(request.key)
            check_owner(request.owner)
            length_s = lease_s(request.lease_ms)
            deadline = self._clock() + wait_s(request.wait_ms)
        except PenstockError as error:
            await abort(context, error)
        while True:
            value = await self._store.get(request.key)
            if value is not None:
                return cache_pb2.GetOrLeaseResponse(outcome=cache_pb2.GetOrLeaseResponse.FOUND, value=value)
            if await self._leases.acquire(request.key, request.owner, length_s):
                return await self._lead(request)
            if not await self._leases.wait(request.key, deadline):
                return self._answer(cache_pb2.GetOrLeaseResponse.WAIT)

    async def _lead(self, request: cache_pb2.GetOrLeaseRequest) -> cache_pb2.GetOrLeaseResponse:
        """The lease is there; look once more, for its last owner may have put the value since."""
        try:
            value = await self._store.get(request.key)
        except asyncio.CancelledError:
            await self._leases.release(request.key, request.owner)
            raise
        if value is None:
            return self._answer(cache_pb2.GetOrLeaseResponse.LEAD)
        await self._leases.release(request.key, request.owner)
        return cache_pb2.GetOrLeaseResponse(outcome=cache_pb2.GetOrLeaseResponse.FOUND, value=value)

    def _answer(self, outcome: cache_pb2.GetOrLeaseResponse.Outcome.ValueType) -> cache_pb2.GetOrLeaseResponse:
        return cache_pb2.GetOrLeaseResponse(outcome=outcome, degraded=not self._store.up)

    async def RenewLeases(
        self,
        request: cache_pb2.RenewLeasesRequest,
        context: grpc.aio.ServicerContext[cache_pb2.RenewLeasesRequest, cache_pb2.RenewLeasesResponse],
    ) -> cache_pb2.RenewLeasesResponse:
        """Prolong leases."""
        try:
            length_s = lease_s(request.lease_ms)
            if len(request.leases) > RENEWALS_MAX:
                raise InvalidRequestError(
                    f"leases has {len(request.leases)} entries, the most is {RENEWALS_MAX}", param="leases"
                )
        except PenstockError as error:
            await abort(context, error)
        leases = [(lease.key, lease.owner) for lease in request.leases]
        return cache_pb2.RenewLeasesResponse(renewed=await self._leases.renew(leases, length_s))

    async def ReleaseLease(
        self,
        request: cache_pb2.ReleaseLeaseRequest,
        context: grpc.aio.ServicerContext[cache_pb2.ReleaseLeaseRequest, cache_pb2.ReleaseLeaseResponse],
    ) -> cache_pb2.ReleaseLeaseResponse:
        """Let the next lead."""
        try:
            check_key(request.key)
            check_owner(request.owner)
        except PenstockError as error:
            await abort(context, error)
        return cache_pb2.ReleaseLeaseResponse(released=await self._leases.release(request.key, request.owner))


def _tier(tier: Store, stats: StoreStats) -> cache_pb2.StatsResponse.Tier:
    return cache_pb2.StatsResponse.Tier(
        name=tier.name, up=tier.up, entries=stats.entries, bytes=stats.bytes, max_bytes=stats.bytes_max,
        hits=stats.hits, misses=stats.misses, evictions=stats.evictions, failures=stats.failures,
    )  # fmt: skip
