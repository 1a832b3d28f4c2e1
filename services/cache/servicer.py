"""The gRPC face of a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.v1 import cache_pb2, cache_pb2_grpc

from services.cache.limits import Limits, check_key
from services.common.errors import PenstockError
from services.common.rpc import abort

if TYPE_CHECKING:
    import grpc.aio

    from services.cache.store import Store

SERVICE_NAME = cache_pb2.DESCRIPTOR.services_by_name["Cache"].full_name


class CacheServicer(cache_pb2_grpc.CacheServicer):
    """`penstock.v1.Cache` over a `Store`."""

    def __init__(self, store: Store, limits: Limits) -> None:
        self._store = store
        self._limits = limits

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
        return cache_pb2.GetResponse(found=value is not None, value=value or b"")

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
        return cache_pb2.PutResponse(stored=await self._store.put(request.key, request.value, ttl_s))

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
        )
