"""Asking a process whether it is ready: gRPC health, HTTP for a gateway, PING for Redis."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

# Read when grpc is loaded. Without them its core writes a line to the console whenever a peer goes or a process is
# spawned; the supervisor never forks without exec.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import httpx
import redis.asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from services.common.rpc import channel

if TYPE_CHECKING:
    from services.cli.plan import ProcessSpec

PROBE_S_MAX = 2.0


class HealthProbe:
    """Probes of one process over one kept connection."""

    def __init__(self, spec: ProcessSpec) -> None:
        self._http = httpx.AsyncClient(timeout=PROBE_S_MAX, trust_env=False) if spec.role == "gateway" else None
        self._url = f"http://{spec.address}/health/ready"
        self._redis = _redis(spec.address) if spec.role == "redis" else None
        self._channel = channel(spec.address) if self._http is None and self._redis is None else None

    async def ready(self) -> bool:
        """Whether it serves now; no answer in time is no."""
        if self._redis is not None:
            return await self._ready_redis(self._redis)
        return await (self._ready_http(self._http) if self._http is not None else self._ready_grpc())

    async def close(self) -> None:
        """Close the connection."""
        if self._http is not None:
            await self._http.aclose()
        if self._redis is not None:
            await self._redis.aclose()
        if self._channel is not None:
            await self._channel.close()

    async def _ready_redis(self, client: redis.asyncio.Redis) -> bool:
        try:
            return bool(await client.ping())
        except (RedisError, OSError):
            return False

    async def _ready_http(self, client: httpx.AsyncClient) -> bool:
        try:
            return (await client.get(self._url)).status_code == httpx.codes.OK
        except httpx.HTTPError:
            return False

    async def _ready_grpc(self) -> bool:
        assert self._channel is not None
        stub = health_pb2_grpc.HealthStub(self._channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=PROBE_S_MAX)
        except grpc.aio.AioRpcError:
            return False
        return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


def _redis(address: str) -> redis.asyncio.Redis:
    host, _, port = address.rpartition(":")
    return redis.asyncio.Redis(
        host=host, port=int(port), socket_timeout=PROBE_S_MAX, socket_connect_timeout=PROBE_S_MAX,
        retry=Retry(NoBackoff(), 0),
    )  # fmt: skip
