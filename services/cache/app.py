"""Wiring of the cache service."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.v1 import cache_pb2_grpc

from services.cache.limits import Limits
from services.cache.servicer import SERVICE_NAME, CacheServicer
from services.cache.settings import ENTRY_OVERHEAD_BYTES, CacheSettings
from services.cache.store import MemoryStore, Store
from services.common.rpc import Server

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Mapping

STOP_GRACE_S = 1.0
"""A look-up takes microseconds; what is still there after this hangs."""


class CacheApp:
    """The cache as a `services.common.lifecycle.Service`."""

    def __init__(self, settings: CacheSettings, store: Store | None = None) -> None:
        self._settings = settings
        self._store: Store = store or MemoryStore(settings.cache_bytes_max, overhead_bytes=ENTRY_OVERHEAD_BYTES)
        self._server: Server | None = None

    async def start(self, tasks: asyncio.TaskGroup) -> Mapping[str, str]:
        """Listen; the gRPC address."""
        limits = Limits(
            value_bytes_max=self._settings.cache_value_bytes_max,
            ttl_s=self._settings.cache_ttl_s,
            ttl_s_max=self._settings.cache_ttl_s_max,
        )
        self._server = server = Server()  # here, since grpc.aio binds to the running loop
        cache_pb2_grpc.add_CacheServicer_to_server(CacheServicer(self._store, limits), server.grpc)
        address = await server.start(self._settings.host, self._settings.port, [SERVICE_NAME])
        await server.ready(True)
        return {"grpc": address}

    async def drain(self) -> None:
        """Say NOT_SERVING and let running look-ups end."""
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)

    async def stop(self) -> int:
        """Close the store; nothing is ever cut, look-ups don't last."""
        if self._server is not None:
            await self._server.stop()
        await self._store.close()
        return 0
