"""Outbox, error details and the server's health."""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from services.common.errors import ContendedError, InvalidRequestError, PenstockError
from services.common.rpc import Outbox, Server, abort, channel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def test_what_is_put_in_one_tick_leaves_together() -> None:
    box: Outbox[int] = Outbox(10)
    taker = asyncio.ensure_future(box.take())
    await asyncio.sleep(0)
    assert not taker.done()
    for number in range(5):
        box.put(number)
    assert len(box) == 5
    assert await taker == [0, 1, 2, 3, 4]
    assert len(box) == 0


async def test_an_unread_outbox_overflows_with_an_error() -> None:
    box: Outbox[int] = Outbox(2)
    box.put(1)
    box.put(2)
    with pytest.raises(BufferError, match="2 messages unread"):
        box.put(3)
    assert await box.take() == [1, 2]
    box.put(3)
    assert await box.take() == [3]


async def test_a_closed_outbox_gives_what_it_holds_and_then_nothing() -> None:
    box: Outbox[int] = Outbox(2)
    box.put(1)
    box.close()
    box.put(2)
    assert await box.take() == [1]
    assert await box.take() == []
    waiting: Outbox[int] = Outbox(2)
    taker = asyncio.ensure_future(waiting.take())
    await asyncio.sleep(0)
    waiting.close()
    assert await taker == []


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    instance = Server()
    yield instance
    await instance.stop()


async def health(address: str, service: str = "") -> int:
    async with channel(address) as wire:
        answer = await health_pb2_grpc.HealthStub(wire).Check(health_pb2.HealthCheckRequest(service=service))
        return int(answer.status)


async def test_health_is_not_serving_until_ready(server: Server) -> None:
    address = await server.start("127.0.0.1", 0, ["penstock.v1.Cache"])
    for service in ("", "penstock.v1.Cache"):
        assert await health(address, service) == health_pb2.HealthCheckResponse.NOT_SERVING
    await server.ready(True)
    for service in ("", "penstock.v1.Cache"):
        assert await health(address, service) == health_pb2.HealthCheckResponse.SERVING
    await server.ready(False)
    assert await health(address) == health_pb2.HealthCheckResponse.NOT_SERVING


async def test_a_taken_port_is_an_error(server: Server) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match=r"cannot listen on 127\.0\.0\.1"):
            await server.start("127.0.0.1", taken.getsockname()[1], [])


async def failing_call(server: Server, error: PenstockError) -> tuple[grpc.aio.AioRpcError, status_pb2.Status]:
    async def handler(_: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await abort(context, error)

    methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {"Fail": grpc.unary_unary_rpc_method_handler(handler)}
    server.grpc.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test.Test", methods),))
    address = await server.start("127.0.0.1", 0, [])
    async with channel(address) as wire:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = wire.unary_unary("/test.Test/Fail")
            await call(b"")
    status = status_pb2.Status()
    status.ParseFromString(caught.value.trailing_metadata()["grpc-status-details-bin"])
    return caught.value, status


async def test_abort_tells_status_code_field_and_reason(server: Server) -> None:
    error, status = await failing_call(server, InvalidRequestError("n is 0", param="n"))
    assert (error.code(), error.details()) == (grpc.StatusCode.INVALID_ARGUMENT, "n is 0")
    info, bad = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("invalid_request", "penstock")
    assert status.details[1].Unpack(bad)
    assert [violation.field for violation in bad.field_violations] == ["n"]


async def test_abort_tells_when_a_retry_helps(server: Server) -> None:
    error, status = await failing_call(server, ContendedError("full", retry_after_s=1.25))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    retry = error_details_pb2.RetryInfo()
    assert status.details[1].Unpack(retry)
    assert retry.retry_delay.ToTimedelta().total_seconds() == 1.25
