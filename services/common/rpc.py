"""gRPC servers and channels with the mesh's limits, keepalive, health and reflection."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.duration_pb2 import Duration
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from services.common.errors import PenstockError, status_of

if TYPE_CHECKING:
    from collections.abc import Sequence

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
"""Largest gRPC message, either way: a prompt of a million tokens is 4 MiB."""

_COMMON: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
]
SERVER_OPTIONS = [
    *_COMMON,
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.so_reuseport", 0),
]
CHANNEL_OPTIONS = [
    *_COMMON,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 2_000),  # also the least time that one attempt to connect gets
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.enable_http_proxy", 0),
]


def channel(address: str) -> grpc.aio.Channel:
    """A plaintext channel inside the mesh."""
    return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)


class Server:
    """A gRPC server with health and reflection. Health says NOT_SERVING until `ready(True)`."""

    def __init__(self, *, interceptors: Sequence[grpc.aio.ServerInterceptor] = ()) -> None:
        self.grpc = grpc.aio.server(options=SERVER_OPTIONS, interceptors=list(interceptors))
        self._health = health.aio.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.grpc)
        self._names: list[str] = []

    async def start(self, host: str, port: int, services: Sequence[str]) -> str:
        """Listen on `host:port` (0 = any free port); the address. `services` are the full names to publish.

        Raises:
            OSError: the port is taken.
        """
        self._names = ["", *services]
        await self.ready(False)
        names = [*services, health.SERVICE_NAME, reflection.SERVICE_NAME]
        reflection.enable_server_reflection(names, self.grpc)
        try:
            bound = self.grpc.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            raise OSError(f"cannot listen on {host}:{port}: is another process there?") from error
        await self.grpc.start()
        return f"{host}:{bound}"

    async def ready(self, ready: bool) -> None:
        """Set the health of every published service."""
        value = health_pb2.HealthCheckResponse.SERVING if ready else health_pb2.HealthCheckResponse.NOT_SERVING
        for name in self._names:
            await self._health.set(name, value)

    async def stop(self, grace_s: float = 0.0) -> None:
        """Refuse new calls, give running ones `grace_s`, then cancel them."""
        await self._health.enter_graceful_shutdown()
        await self.grpc.stop(grace_s)


M = TypeVar("M")


class Outbox(Generic[M]):
    """Messages on their way into one stream: what is put in one event-loop tick leaves together.

    Bounded: `put` beyond `limit` undelivered messages raises, and the owner of the stream should end it.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: list[M] = []
        self._wake = asyncio.Event()
        self._closed = False

    def __len__(self) -> int:
        return len(self._items)

    def put(self, item: M) -> None:
        """Queue `item`.

        Raises:
            BufferError: `limit` messages wait already: the peer does not read.
        """
        if self._closed:
            return
        if len(self._items) >= self._limit:
            raise BufferError(f"the peer left {self._limit} messages unread")
        self._items.append(item)
        self._wake.set()

    def close(self) -> None:
        """End the stream after what is queued."""
        self._closed = True
        self._wake.set()

    async def take(self) -> list[M]:
        """All that is queued, waiting for the first; empty = closed."""
        while not self._items:
            if self._closed:
                return []
            self._wake.clear()
            await self._wake.wait()
        items, self._items = self._items, []
        return items


async def abort(context: grpc.aio.ServicerContext[Any, Any], error: PenstockError) -> NoReturn:
    """End the call with the status of the error table, with `RetryInfo` and `BadRequest` details where known."""
    status = status_of(error)
    rich = status_pb2.Status(code=status.grpc.value[0], message=error.message)
    info = error_details_pb2.ErrorInfo(reason=error.code, domain="penstock")
    rich.details.add().Pack(info)
    if error.param is not None:
        violation = error_details_pb2.BadRequest.FieldViolation(field=error.param, description=error.message)
        rich.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if error.retry_after_s is not None:
        delay = Duration(seconds=int(error.retry_after_s), nanos=int(error.retry_after_s % 1 * 1e9))
        rich.details.add().Pack(error_details_pb2.RetryInfo(retry_delay=delay))
    context.set_trailing_metadata((("grpc-status-details-bin", rich.SerializeToString()),))
    await context.abort(status.grpc, error.message)
    raise AssertionError("abort always raises")
