"""Settings of a gateway."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from services.common.settings import Addresses, Port, ServiceSettings


class GatewaySettings(ServiceSettings):
    """Edge gateway: OpenAI HTTP/SSE and gRPC in front of routers and workers."""

    http_port: Port = 8000
    """Port of the OpenAI HTTP API; 0 = any free one."""
    grpc_port: Port = 8001
    """Port of the gRPC API; 0 = any free one."""
    routers: Addresses = Field(min_length=1)
    """Addresses of all routers, host:port, comma-separated."""
    cache: str = ""
    """Address of the cache service, host:port; empty = no response cache."""
    tenants: Path
    """The tenants file (YAML)."""
    body_bytes_max: int = Field(default=4 * 1024 * 1024, ge=1024, le=64 * 1024 * 1024)
    """Largest request body in bytes; over it is 413."""
    requests_max: int = Field(default=4096, ge=1)
    """Generations at once in this gateway; over it is 429."""
    max_tokens_default: int = Field(default=4096, ge=1)
    """Answer length when the request sets none (bounded by the context that is left), in tokens."""
    slow_client_s: float = Field(default=30.0, gt=0)
    """A client that takes nothing for so long is cancelled, in seconds."""
    router_wait_s: float = Field(default=2.0, ge=0)
    """How long a request waits for any router to be reachable, in seconds, before 503."""
    no_worker_wait_s: float = Field(default=10.0, ge=0, le=3600)
    """How long a request for a declared model waits for its first worker (scale from zero), in seconds, before 503."""
    moves_max: int = Field(default=3, ge=0, le=16)
    """How often one generation may move to another worker after losing its own."""
