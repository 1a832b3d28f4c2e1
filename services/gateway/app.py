"""The gateway, wired: catalogue, routers, workers, cache, and the two doors (HTTP and gRPC)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.v1 import inference_pb2_grpc

from services.common import rpc
from services.common.ids import new_incarnation
from services.common.tenants import Tenants, TenantsError
from services.gateway.cache import ResponseCache
from services.gateway.generation.generator import Generator
from services.gateway.generation.prepare import Preparer
from services.gateway.grpc.inference import InferenceServicer
from services.gateway.http.server import HttpServer
from services.gateway.mesh.catalog import Catalog
from services.gateway.mesh.routers import RouterPool
from services.gateway.mesh.workers import WorkerPool
from services.gateway.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Mapping

    from services.gateway.settings import GatewaySettings

INFERENCE = "penstock.v1.Inference"


class Gateway:
    """One gateway process."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        self._changed = asyncio.Event()

    async def start(self, tasks: asyncio.TaskGroup) -> Mapping[str, str]:
        """See `lifecycle.Service`."""
        settings = self._settings
        try:
            tenants = Tenants.load(settings.tenants)
        except TenantsError as error:
            raise SystemExit(f"services.gateway: {error}") from None
        gateway_id = f"{settings.name or 'gateway'}-{new_incarnation():016x}"
        metrics = Metrics()
        self._catalog = catalog = Catalog(self._changed.set, no_worker_wait_s=settings.no_worker_wait_s)
        routers = RouterPool(settings.routers, gateway_id, catalog, self._changed.set, wait_s=settings.router_wait_s)
        workers = WorkerPool(gateway_id)
        self._cache = ResponseCache(settings.cache, metrics) if settings.cache else None
        self._generator = Generator(
            routers, workers, self._cache, metrics,
            requests_max=settings.requests_max, moves_max=settings.moves_max,
        )  # fmt: skip
        preparer = Preparer(catalog, max_tokens_default=settings.max_tokens_default)
        for part in (catalog, routers, workers, self._cache):
            if part is not None:
                part.start(tasks)
        self._http = HttpServer(settings, tenants, catalog, preparer, self._generator, metrics)
        self._grpc = rpc.Server()
        servicer = InferenceServicer(
            tenants, catalog, preparer, self._generator, metrics, patience_s=settings.slow_client_s
        )
        inference_pb2_grpc.add_InferenceServicer_to_server(servicer, self._grpc.grpc)
        http = await self._http.start()
        grpc = await self._grpc.start(settings.host, settings.grpc_port, [INFERENCE])
        tasks.create_task(self._publish_health(), name="health")
        return {"http": http, "grpc": grpc}

    @property
    def _ready(self) -> bool:
        return self._generator.ready and self._catalog.ready

    async def _publish_health(self) -> None:
        """Keep gRPC health equal to `/health/ready`."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            await self._grpc.ready(self._ready)

    async def drain(self) -> None:
        """See `lifecycle.Service`: not ready any more, then until the last stream has ended."""
        self._generator.close()
        self._changed.set()
        await self._generator.wait_idle()

    async def stop(self) -> int:
        """See `lifecycle.Service`."""
        cut = self._generator.responses
        await self._http.stop()
        await self._grpc.stop()
        if self._cache is not None:
            await self._cache.close()
        return cut
