"""Asking a process whether it is ready: gRPC health, or HTTP for a gateway."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

# Read when grpc is loaded. Without them its core writes a line to the console whenever a peer goes or a process is
# spawned; the supervisor never forks without exec.
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import grpc
import httpx
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.rpc import channel

if TYPE_CHECKING:
    from services.cli.plan import ProcessSpec

PROBE_S_MAX = 2.0


class HealthProbe:
    """Probes of one process over one kept connection."""

    def __init__(self, spec: ProcessSpec) -> None:
        self._http = httpx.AsyncClient(timeout=PROBE_S_MAX, trust_env=False) if spec.role == "gateway" else None
        self._url = f"http://{spec.address}/health/ready"
        self._channel = channel(spec.address) if self._http is None else None

    async def ready(self) -> bool:
        """Whether it serves now; no answer in time is no."""
        return await (self._ready_http(self._http) if self._http is not None else self._ready_grpc())

    async def close(self) -> None:
        """Close the connection."""
        if self._http is not None:
            await self._http.aclose()
        if self._channel is not None:
            await self._channel.close()

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
