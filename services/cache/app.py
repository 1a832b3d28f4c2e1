"""Wiring of the cache service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.v1 import cache_pb2_grpc

from services.cache.leases import Leases
from services.cache.limits import Limits
from services.cache.servicer import SERVICE_NAME, CacheServicer
from services.cache.settings import ENTRY_OVERHEAD_BYTES, CacheSettings
from services.cache.store import DiskStore, Down, MemoryStore, RedisLink, RedisStore, TieredStore
from services.cache.store.redis import RELEASED
from services.common.rpc import Server

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

STOP_GRACE_S = 1.0
"""A look-up takes microseconds; what is still there after this hangs, or waits for another's answer."""


class CacheApp:
    """The cache as a `services.common.lifecycle.Service`."""

    def __init__(self, settings: CacheSettings) -> None:
        self._settings = settings
        self._server: Server | None = None
        self._store: TieredStore | None = None

    async def start(self, tasks: asyncio.TaskGroup) -> Mapping[str, str]:
        """Open the tiers and listen; the gRPC address."""
        settings = self._settings
        limits = Limits(
            value_bytes_max=settings.cache_value_bytes_max,
            ttl_s=settings.cache_ttl_s,
            ttl_s_max=settings.cache_ttl_s_max,
        )
        memory = MemoryStore(settings.cache_bytes_max, overhead_bytes=ENTRY_OVERHEAD_BYTES)
        redis = self._redis() if settings.redis else None
        disk = DiskStore(settings.disk, settings.disk_bytes_max) if settings.disk is not None else None
        self._store = store = TieredStore(memory, redis, disk)
        self._leases = Leases(redis, unreachable=Down)
        try:
            await store.start(tasks)
        except OSError as error:
            raise SystemExit(f"services.cache: PENSTOCK_DISK (--disk) {settings.disk}: {error}") from None
        self._server = server = Server()  # here, since grpc.aio binds to the running loop
        servicer = CacheServicer(store, store.tiers, self._leases, limits)
        cache_pb2_grpc.add_CacheServicer_to_server(servicer, server.grpc)
        address = await server.start(settings.host, settings.port, [SERVICE_NAME])
        await server.ready(True)
        return {"grpc": address, "store": store.name}

    def _redis(self) -> RedisStore:
        link = RedisLink(self._settings.redis, timeout_s=self._settings.redis_timeout_s)
        return RedisStore(link, self._announced, self._came_up)

    def _announced(self, kind: bytes, key: bytes) -> None:
        """What another cache service did."""
        if self._store is None:
            return
        if kind == RELEASED:
            self._leases.released_elsewhere(key)
            return
        self._store.forget(key)
        self._leases.fulfilled(key)

    def _came_up(self, kept_data: bool) -> None:
        if self._store is not None:
            self._store.came_up(kept_data)

    async def drain(self) -> None:
        """Say NOT_SERVING and let running look-ups end."""
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)

    async def stop(self) -> int:
        """Close the store; nothing is ever cut, look-ups don't last."""
        if self._server is not None:
            await self._server.stop()
        if self._store is not None:
            await self._store.close()
        return 0
