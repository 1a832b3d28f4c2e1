"""Prometheus metrics of the router: counters beside the decisions, gauges read when somebody asks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from services.router.events import Event, Granted, Preempt, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from services.router.scheduler import Scheduler

_READ_TIMEOUT_S = 5.0
CLASSES = ("interactive", "standard", "batch")
_WAIT_BUCKETS_S = (0.001, 0.005, 0.02, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Metrics:
    """Counts what the scheduler decided. `registry` is what an exporter publishes."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self._grants = Counter("penstock_router_grants", "Leases granted.", ["class"], registry=registry)
        self._waits = Histogram(
            "penstock_router_wait_seconds", "From arrival at the mesh to the lease.", ["class"],
            buckets=_WAIT_BUCKETS_S, registry=registry,
        )  # fmt: skip
        self._promotions = Counter(
            "penstock_router_promotions", "Leases granted above their class after a long wait.", ["class"],
            registry=registry,
        )  # fmt: skip
        self._preempts = Counter(
            "penstock_router_preempts", "Leases asked back for a higher class.", ["class"], registry=registry
        )
        self._answers = Counter(
            "penstock_router_preempt_answers", "What gateways said to that.", ["answer"], registry=registry
        )
        self._rejections = Counter(
            "penstock_router_rejections", "Requests refused.", ["reason", "class"], registry=registry
        )
        self._cut = Counter(
            "penstock_router_gateways_cut", "Gateways cut off because they did not read.", registry=self.registry
        )

    def count(self, events: Iterable[Event]) -> None:
        """Take note of decisions."""
        for event in events:
            if isinstance(event, Granted):
                name = class_name(event.priority_class)
                self._grants.labels(name).inc()
                self._waits.labels(name).observe(max(event.waited_s, 0.0))
                if event.promoted:
                    self._promotions.labels(name).inc()
            elif isinstance(event, Rejected):
                self._rejections.labels(event.reason.name.lower(), class_name(event.priority_class)).inc()
            elif isinstance(event, Preempt):
                self._preempts.labels(class_name(event.priority_class)).inc()

    def preempt_answered(self, answer: str) -> None:
        """`yielded` or `refused`."""
        self._answers.labels(answer).inc()

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
        waiting = self._scheduler.waiting_by_class()
        requests = GaugeMetricFamily("penstock_router_queue_requests", "Requests that wait.", labels=["model", "class"])
        tokens = GaugeMetricFamily("penstock_router_queue_tokens", "Tokens that wait.", labels=["model", "class"])
        live = GaugeMetricFamily("penstock_router_workers", "Workers that may get work.", labels=["model"])
        for view in self._scheduler.models():
            for name, (count, size) in zip(CLASSES, waiting[view.model], strict=True):
                requests.add_metric([view.model, name], count)
                tokens.add_metric([view.model, name], size)
            live.add_metric([view.model], len(view.workers))
        leases = GaugeMetricFamily("penstock_router_leases", "Leases held.", value=self._scheduler.live_leases)
        precision = GaugeMetricFamily(
            "penstock_router_prefix_precision",
            "Of tokens predicted to be cached, those that were.",
            labels=["worker"],
        )
        recall = GaugeMetricFamily(
            "penstock_router_prefix_recall", "Of the cached tokens, those that were predicted.", labels=["worker"]
        )
        for worker, check in self._scheduler.prefixes.checks():
            precision.add_metric([worker.info.worker_id], check.precision)
            recall.add_metric([worker.info.worker_id], check.recall)
        gateways = GaugeMetricFamily("penstock_router_gateways", "Gateways connected.", value=self._gateways())
        return [requests, tokens, live, leases, gateways, precision, recall]


def class_name(priority_class: int) -> str:
    """Of a class on the wire; what isn't one counts as the most urgent, as in the queue."""
    return CLASSES[min(max(priority_class, 1), len(CLASSES)) - 1]
