"""Clients that leave, run out of time, or don't read: the worker is told, and nobody else notices."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from penstock.v1 import dispatch_pb2
from penstock.v1 import inference_pb2 as pb

from services.common.frames import FinishReason
from tests.integration.gateway.doors import KEY, parse_events
from tests.integration.gateway.peers import TURN_S, ids

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Scene, Stage
    from tests.integration.gateway.doors import Door

TOKENS = ids("The valve opens")
METADATA = (("authorization", f"Bearer {KEY}"),)


async def stopped(scene: Scene, handle: int) -> None:
    """The worker was told to stop the sequence, and the router that the lease is over."""
    assert await scene.worker.aborts.get() == handle
    assert (await scene.router.releases.get()).outcome == dispatch_pb2.CANCELLED


async def idle(door: Door) -> None:
    """Until no response is under way, so that all accounts are made."""
    async with asyncio.timeout(TURN_S):
        await door.gateway._generator.wait_idle()


async def outcomes(door: Door, route: str) -> dict[str, float]:
    names = ("ok", "cancelled", "deadline_exceeded", "internal_error")
    found = {n: await door.metric("penstock_gateway_requests_total", route=route, outcome=n) for n in names}
    return {name: count for name, count in found.items() if count}


async def test_a_client_that_leaves_in_the_middle_of_a_stream(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async with stage() as scene:
        async with scene.door.stream() as stream:
            attached = await scene.worker.submit()
            await attached.send(TOKENS[:3])
            await stream.text()
        await stopped(scene, attached.submit.sequence)
        await idle(scene.door)
        assert await scene.door.metric("penstock_gateway_generations") == 0
        assert await outcomes(scene.door, "/v1/completions") == {"cancelled": 1}
        assert await scene.door.metric("penstock_tokens_total", kind="completion") == 3
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_client_that_leaves_before_the_first_token(
    stage: Stage, caplog: pytest.LogCaptureFixture, streamed: bool
) -> None:
    async with stage() as scene:
        answer = asyncio.create_task(scene.door.chat(stream=streamed))
        attached = await scene.worker.submit()
        answer.cancel()
        await stopped(scene, attached.submit.sequence)
        await idle(scene.door)
        assert await outcomes(scene.door, "/v1/chat/completions") == {"cancelled": 1}
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_client_that_leaves_while_it_waits_for_a_lease(stage: Stage) -> None:
    async with stage() as scene:
        scene.router.manual = True
        answer = asyncio.create_task(scene.door.chat())
        ask = await scene.router.acquires.get()
        answer.cancel()
        assert await scene.router.withdraws.get() == ask.request
        lease = scene.router.grant(ask.request, scene.worker)  # it was on its way
        assert (await scene.router.releases.get()).lease == lease
        assert scene.worker.submits.empty


async def test_a_grpc_client_that_cancels(stage: Stage) -> None:
    async with stage() as scene:
        call = scene.door.inference.Generate(pb.GenerateRequest(model="m", text="hi"), metadata=METADATA)
        attached = await scene.worker.submit()
        await attached.send(TOKENS[:3])
        events = [await call.read() for _ in range(2)]
        assert [isinstance(e, pb.GenerateEvent) and e.WhichOneof("event") for e in events] == ["started", "delta"]
        call.cancel()
        await stopped(scene, attached.submit.sequence)
        await idle(scene.door)
        assert await outcomes(scene.door, "grpc") == {"cancelled": 1}


async def test_several_choices_are_stopped_together(stage: Stage) -> None:
    async with stage() as scene:
        async with scene.door.stream(n=3) as stream:
            attached = await scene.worker.submit()
            await attached.send(TOKENS[:1], choice=1, finish=FinishReason.STOP)
            await stream.text()
        first = attached.submit.sequence
        assert [await scene.worker.aborts.get() for _ in range(2)] == [first, first + 2]


async def test_a_deadline_before_the_lease_is_504(stage: Stage) -> None:
    async with stage() as scene:
        scene.router.manual = True
        answer = await scene.door.chat(headers={"x-request-timeout-ms": "50"})
        ask = await scene.router.acquires.get()
        assert 0 < ask.deadline_ms <= 50
        assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
        assert await scene.router.withdraws.get() == ask.request


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_deadline_before_the_first_token_is_504(stage: Stage, streamed: bool) -> None:
    async with stage() as scene:
        answer = asyncio.create_task(scene.door.chat(stream=streamed, headers={"x-request-timeout-ms": "300"}))
        attached = await scene.worker.submit()
        assert 0 < attached.submit.deadline_ms <= 300
        assert ((await answer).status, (await answer).error["type"]) == (504, "timeout_error")
        assert await scene.worker.aborts.get() == attached.submit.sequence
        assert await outcomes(scene.door, "/v1/chat/completions") == {"deadline_exceeded": 1}


async def test_a_deadline_in_the_middle_of_a_stream_is_an_error_event(stage: Stage) -> None:
    async with stage() as scene, scene.door.stream(headers={"x-request-timeout-ms": "500"}) as stream:
        attached = await scene.worker.submit()
        await attached.send(TOKENS[:2])
        answer = await stream.rest()
        assert answer.events[-1].data["error"]["code"] == "deadline_exceeded"
        assert not answer.done
        assert await scene.worker.aborts.get() == attached.submit.sequence
        assert await outcomes(scene.door, "/v1/completions") == {"deadline_exceeded": 1}


async def test_a_grpc_deadline(stage: Stage) -> None:
    async with stage() as scene:
        call = scene.door.inference.Generate(pb.GenerateRequest(model="m", text="hi"), metadata=METADATA, timeout=0.5)
        attached = await scene.worker.submit()
        assert 0 < attached.submit.deadline_ms <= 500
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert await scene.worker.aborts.get() == attached.submit.sequence


@pytest.mark.parametrize("value", ["0", "-5", "1.5", "soon", "", "9" * 5000, "86400001", "²"])
async def test_a_timeout_that_is_none(stage: Stage, value: str) -> None:
    async with stage() as scene:
        answer = await scene.door.chat(headers={"x-request-timeout-ms": value})
        assert (answer.status, answer.error["param"]) == (400, "x-request-timeout-ms")


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel holds little for clients that don't read: what a connection gets, it has from its listener."""
    create_server = socket.create_server

    def small(*args: Any, **kwargs: Any) -> socket.socket:
        listener = create_server(*args, **kwargs)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
        return listener

    monkeypatch.setattr("services.gateway.http.server.socket.create_server", small)


class Reader:
    """A client on a bare socket with small buffers, that reads when it is told to."""

    def __init__(self, door: Door, **fields: Any) -> None:
        self._door = door
        self._sock = socket.socket()
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._sock.setblocking(False)
        self._body = json.dumps({"model": "m", "prompt": "hi", "stream": True, **fields}).encode()
        self.data = b""

    async def ask(self) -> None:
        """Connect and send the request."""
        loop = asyncio.get_running_loop()
        host, port = self._door.http.split(":")
        await loop.sock_connect(self._sock, (host, int(port)))
        head = (
            f"POST /v1/completions HTTP/1.0\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(self._body)}\r\n\r\n"
        )
        await loop.sock_sendall(self._sock, head.encode() + self._body)

    async def rest(self) -> bytes:
        """Read until the connection ends; the body."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(TURN_S):
            while data := await loop.sock_recv(self._sock, 1 << 20):
                self.data += data
        return self.data.partition(b"\r\n\r\n")[2]

    async def __aenter__(self) -> Reader:
        await self.ask()
        return self

    async def __aexit__(self, *error: object) -> None:
        self._sock.close()


LONG = ids("abcdefghij" * 100)
"""One frame's tokens."""


@pytest.mark.usefixtures("small_buffers")
async def test_a_client_that_does_not_read_gets_merged_deltas_and_slows_nobody(stage: Stage) -> None:
    usage = {"include_usage": True}
    async with stage() as scene, Reader(scene.door, max_tokens=4000, stream_options=usage) as slow:
        behind = await scene.worker.submit()
        async with scene.door.stream(max_tokens=4000) as fast:
            beside = await scene.worker.submit()
            for _ in range(3):
                for token in LONG:  # as events more than both sockets' buffers hold
                    await behind.send([token])
                    await beside.send([token])
            await beside.send(ids("."), finish=FinishReason.STOP)
            quick = await fast.rest()
            assert quick.done
            assert quick.text() == "abcdefghij" * 300 + "."
        await behind.send(ids("."), finish=FinishReason.STOP)
        events = parse_events(await slow.rest())
        assert events[-1].data == "[DONE]"
        chunks = [event for event in events[:-1] if event.data["choices"]]
        assert "".join(event.text for event in chunks) == "abcdefghij" * 300 + "."
        assert 1 < len(chunks) < len(quick.events) / 2
        numbers = [int(event.id or -1) for event in chunks]
        assert numbers == sorted(set(numbers))
        assert events[-2].data["usage"]["completion_tokens"] == numbers[-1]


@pytest.mark.usefixtures("small_buffers")
async def test_a_client_that_takes_nothing_is_cancelled(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    async with stage(slow_client_s=0.2) as scene, Reader(scene.door, max_tokens=4000):
        attached = await scene.worker.submit()
        for _ in range(30):
            await attached.send(LONG[:100])
        stop = asyncio.create_task(stopped(scene, attached.submit.sequence))
        while not stop.done():
            await attached.send(LONG[:100])
            await asyncio.sleep(0)
        await stop
        await idle(scene.door)
        assert await scene.door.metric("penstock_gateway_slow_clients_total") == 1
        assert await outcomes(scene.door, "/v1/completions") == {"cancelled": 1}
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.usefixtures("small_buffers")
async def test_a_client_that_leaves_the_end_unread_is_given_up_too(stage: Stage) -> None:
    async with stage(slow_client_s=1.5) as scene, Reader(scene.door, max_tokens=4000):
        attached = await scene.worker.submit()
        for token in LONG[:600]:
            await attached.send([token])
        await attached.send(finish=FinishReason.STOP)
        assert (await scene.router.releases.get()).outcome == dispatch_pb2.FINISHED  # the worker is free at once
        await idle(scene.door)
        assert await scene.door.metric("penstock_gateway_slow_clients_total") == 1


@pytest.mark.usefixtures("small_buffers")
async def test_a_drain_waits_for_a_client_that_has_not_read_everything(stage: Stage) -> None:
    async with stage() as scene, Reader(scene.door, max_tokens=4000) as slow:
        attached = await scene.worker.submit()
        for token in LONG[:600]:
            await attached.send([token])
        await attached.send(finish=FinishReason.STOP)
        assert (await scene.router.releases.get()).outcome == dispatch_pb2.FINISHED
        drain = asyncio.create_task(scene.door.gateway.drain())
        assert (await scene.door.get("/health/ready")).status == 503
        assert not drain.done()
        assert parse_events(await slow.rest())[-1].data == "[DONE]"
        await drain


@pytest.mark.usefixtures("small_buffers")
async def test_the_last_words_do_not_wait_for_ever(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.http.sse.BUFFER_BYTES_HIGH", 1 << 30)  # the end alone finds the client behind
    async with stage(slow_client_s=0.2) as scene, Reader(scene.door, max_tokens=4000):
        attached = await scene.worker.submit()
        for token in LONG[:600]:
            await attached.send([token])
        await attached.send(finish=FinishReason.STOP)
        await idle(scene.door)
        assert await scene.door.metric("penstock_gateway_slow_clients_total") == 1
