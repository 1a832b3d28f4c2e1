"""Prometheus metrics of the router: counters beside the decisions, gauges read when somebody asks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.router.events import Event, Granted, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from services.router.scheduler import Scheduler

_READ_TIMEOUT_S = 5.0


class Metrics:
    """Counts what the scheduler decided. `registry` is what an exporter publishes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._grants = Counter("penstock_router_grants", "Leases granted.", registry=self.registry)
        self._rejections = Counter(
            "penstock_router_rejections", "Requests refused.", ["reason"], registry=self.registry
        )
        self._cut = Counter(
            "penstock_router_gateways_cut", "Gateways cut off because they did not read.", registry=self.registry
        )

    def count(self, events: Iterable[Event]) -> None:
        """Take note of decisions."""
        for event in events:
            if isinstance(event, Granted):
                self._grants.inc()
            elif isinstance(event, Rejected):
                self._rejections.labels(event.reason.name.lower()).inc()

    def gateway_cut(self) -> None:
        """A gateway left its messages unread."""
        self._cut.inc()

    def watch(self, scheduler: Scheduler, gateways: Callable[[], int], loop: asyncio.AbstractEventLoop) -> None:
        """Add the gauges of the scheduler's state, read on its own loop from the exporter's thread."""
        self.registry.register(_State(scheduler, gateways, loop))


class _State(Collector):
    def __init__(self, scheduler: Scheduler, gateways: Callable[[], int], loop: asyncio.AbstractEventLoop) -> None:
        self._scheduler = scheduler
        self._gateways = gateways
        self._loop = loop

    def describe(self) -> list[GaugeMetricFamily]:
        """Nothing, so that registering doesn't collect (and wait for the loop it runs on)."""
        return []

    def collect(self) -> list[GaugeMetricFamily]:
        """Called in the exporter's thread."""
        return asyncio.run_coroutine_threadsafe(self._read(), self._loop).result(_READ_TIMEOUT_S)

    async def _read(self) -> list[GaugeMetricFamily]:
        waiting = self._scheduler.waiting()
        requests = GaugeMetricFamily("penstock_router_queue_requests", "Requests that wait.", labels=["model"])
        tokens = GaugeMetricFamily("penstock_router_queue_tokens", "Tokens that wait.", labels=["model"])
        live = GaugeMetricFamily("penstock_router_workers", "Workers that may get work.", labels=["model"])
        for view in self._scheduler.models():
            count, size = waiting.get(view.model, (0, 0))
            requests.add_metric([view.model], count)
            tokens.add_metric([view.model], size)
            live.add_metric([view.model], len(view.workers))
        leases = GaugeMetricFamily("penstock_router_leases", "Leases held.", value=self._scheduler.live_leases)
        gateways = GaugeMetricFamily("penstock_router_gateways", "Gateways connected.", value=self._gateways())
        return [requests, tokens, live, leases, gateways]
