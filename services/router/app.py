"""Wiring of the router."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from penstock.v1 import dispatch_pb2, dispatch_pb2_grpc, registry_pb2, registry_pb2_grpc
from prometheus_client import start_http_server

from services.common.ids import new_incarnation
from services.common.rpc import Server
from services.router.dispatch import DispatchServicer
from services.router.hub import Hub
from services.router.metrics import Metrics
from services.router.registry import RegistryServicer
from services.router.scheduler import Scheduler

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from services.router.settings import RouterSettings


class Router:
    """The router as a `services.common.lifecycle.Service`."""

    def __init__(self, settings: RouterSettings) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._incarnation = new_incarnation()
        self._stop_metrics: Callable[[], None] | None = None
        self._running: list[asyncio.Task[None]] = []
        # Made by `start`, because grpc.aio binds to the running loop.
        self._hub: Hub | None = None
        self._server: Server | None = None

    async def start(self, tasks: asyncio.TaskGroup) -> Mapping[str, str]:
        """Listen, serve, tick."""
        settings = self._settings
        scheduler = Scheduler(settings.scheduler(), incarnation=self._incarnation, now=time.monotonic())
        hub = self._hub = Hub(scheduler, self._metrics, unread_max=settings.gateway_unread_max)
        server = self._server = Server()
        name = settings.name or "router"
        welcome = dispatch_pb2.RouterWelcome(router_id=name, incarnation=self._incarnation)
        registered = registry_pb2.Registered(router_id=name, incarnation=self._incarnation)
        dispatch = DispatchServicer(hub, welcome, stall_s=settings.gateway_stall_s)
        dispatch_pb2_grpc.add_DispatchServicer_to_server(dispatch, server.grpc)
        registry_pb2_grpc.add_RegistryServicer_to_server(RegistryServicer(hub, registered), server.grpc)
        services = ("penstock.v1.Dispatch", "penstock.v1.Registry")
        address = await server.start(settings.host, settings.port, services)
        addresses = {"grpc": address}
        if settings.metrics_port:
            addresses["metrics"] = self._start_metrics(hub)
        self._running = [tasks.create_task(hub.run()), tasks.create_task(hub.run_models())]
        await server.ready(True)
        return addresses

    async def drain(self) -> None:
        """Reject what waits and what comes as DRAINING, and end the streams when that is read."""
        if self._server is not None and self._hub is not None:
            await self._server.ready(False)
            await self._hub.drain()

    async def stop(self) -> int:
        """Close everything; the number of gateways that were cut off."""
        if self._server is None or self._hub is None:
            return 0
        cut = self._hub.gateways()
        self._hub.close()
        await self._server.stop()
        if self._stop_metrics is not None:
            await asyncio.to_thread(self._stop_metrics)
        for task in self._running:
            task.cancel()
        return cut

    def _start_metrics(self, hub: Hub) -> str:
        settings = self._settings
        self._metrics.watch(hub.scheduler, hub.gateways, asyncio.get_running_loop())
        server, thread = start_http_server(settings.metrics_port, settings.host, self._metrics.registry)

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        self._stop_metrics = stop
        return f"{settings.host}:{settings.metrics_port}"
