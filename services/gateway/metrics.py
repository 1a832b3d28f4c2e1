"""Prometheus metrics of a gateway. Per request, never per token."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import process_collector as _process

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """One registry per gateway process."""

    def __init__(self) -> None:
        registry = self.registry = CollectorRegistry()
        _process.ProcessCollector(registry=registry)
        self.requests = Counter(
            "penstock_gateway_requests", "Requests by route and outcome (ok or the error's code)",
            ["route", "outcome"], registry=registry,
        )  # fmt: skip
        self.running = Gauge("penstock_gateway_generations", "Generations running now", registry=registry)
        self.ttft = Histogram(
            "penstock_time_to_first_token_seconds", "From the request's arrival to its first text",
            ["model"], registry=registry, buckets=_SECONDS,
        )  # fmt: skip
        self.duration = Histogram(
            "penstock_request_duration_seconds", "From the request's arrival to its last token",
            ["model"], registry=registry, buckets=_SECONDS,
        )  # fmt: skip
        self.queue = Histogram(
            "penstock_queue_seconds", "Waiting for a lease", ["model"], registry=registry, buckets=_SECONDS
        )
        self.tokens = Counter(
            "penstock_tokens", "Tokens by kind (prompt, cached, completion)", ["model", "kind"], registry=registry
        )
        self.slow_clients = Counter(
            "penstock_gateway_slow_clients", "Streams cancelled because the client took nothing", registry=registry
        )
        self.cache = Counter(
            "penstock_response_cache",
            "Response cache look-ups (hit, shared, miss, degraded)",
            ["result"],
            registry=registry,
        )
