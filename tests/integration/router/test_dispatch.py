"""The router over real gRPC: leases, queues, and what happens when peers go away."""

from __future__ import annotations

import asyncio
import json
import sys
import urllib.request
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from penstock.v1 import dispatch_pb2, registry_pb2

from services.common.rpc import channel
from tests.integration.router.peers import Gateway, Worker, running_router

if TYPE_CHECKING:
    from pathlib import Path


async def _status(call: grpc.aio.StreamStreamCall[Any, Any]) -> tuple[grpc.StatusCode, str]:
    """Read a stream that the router ends, to its end."""
    with pytest.raises(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    return await call.code(), await call.details()


async def test_a_request_is_granted_the_worker_that_registered() -> None:
    async with running_router() as (_, address), Worker(address, 7), Gateway(address) as gateway:
        known = await gateway.knows("m", 1)
        assert (known.card_hash, list(known.workers), known.context_length) == ("card", ["127.0.0.1:9007"], 4096)
        await gateway.acquire(1)
        granted = await gateway.next()
        assert isinstance(granted, dispatch_pb2.Granted)
        assert (granted.request, granted.worker, granted.incarnation) == (1, "127.0.0.1:9007", 7)
        assert granted.lease


async def test_a_full_worker_queues_and_a_release_grants_the_next() -> None:
    async with running_router() as (_, address), Worker(address, max_sequences=1), Gateway(address) as gateway:
        await gateway.acquire(1)
        first = await gateway.next()
        await gateway.acquire(2)
        queued = await gateway.next()
        assert (queued.request, queued.position) == (2, 1)
        await gateway.send(release=dispatch_pb2.Release(lease=first.lease))
        assert (await gateway.next()).request == 2


async def test_messages_of_one_batch_are_taken_in_order() -> None:
    async with running_router() as (_, address), Worker(address, max_sequences=1), Gateway(address) as gateway:
        messages = [
            dispatch_pb2.GatewayMessage(
                acquire=dispatch_pb2.Acquire(
                    request=number, model="m", prompt_tokens=1, max_tokens=1, response_id=str(number)
                )
            )
            for number in (1, 2, 3)
        ]
        messages.append(dispatch_pb2.GatewayMessage(withdraw=dispatch_pb2.Withdraw(request=2)))
        await gateway.call.write(dispatch_pb2.GatewayBatch(messages=messages))
        granted = await gateway.next()
        assert granted.request == 1
        assert [(await gateway.next()).request for _ in range(2)] == [2, 3]
        await gateway.send(release=dispatch_pb2.Release(lease=granted.lease))
        last = await gateway.next()
        assert isinstance(last, dispatch_pb2.Granted)
        assert last.request == 3


async def test_a_gateway_that_goes_leaves_its_room_to_others() -> None:
    async with running_router() as (_, address), Worker(address, max_sequences=1), Gateway(address, "b") as patient:
        async with Gateway(address, "a") as leaving:
            await leaving.acquire(1)
            assert isinstance(await leaving.next(), dispatch_pb2.Granted)
            await patient.acquire(1)
            assert isinstance(await patient.next(), dispatch_pb2.Queued)
        assert isinstance(await patient.next(), dispatch_pb2.Granted)


async def test_a_worker_whose_stream_closes_is_out_at_once() -> None:
    async with running_router() as (_, address), Gateway(address) as gateway:
        async with Worker(address):
            await gateway.knows("m", 1)
        await gateway.knows("m", 0)
        await gateway.acquire(1)
        assert isinstance(await gateway.next(), dispatch_pb2.Queued)
        async with Worker(address, 2):
            assert (await gateway.next()).incarnation == 2


async def test_a_silent_worker_is_out_and_told_so() -> None:
    async with (
        running_router(worker_timeout_s=0.2) as (_, address),
        Gateway(address) as gateway,
        Worker(address) as silent,
    ):
        await gateway.knows("m", 1)
        await gateway.knows("m", 0)
        code, details = await _status(silent.call)
        assert code is grpc.StatusCode.UNAVAILABLE
        assert "no report for 0.2 s" in details


async def test_a_restarted_worker_replaces_its_old_registration() -> None:
    async with running_router() as (_, address), Gateway(address) as gateway, Worker(address, 1, worker_id="w") as old:
        await gateway.knows("m", 1)
        async with Worker(address, 2, worker_id="w"):
            assert (await _status(old.call))[0] is grpc.StatusCode.UNAVAILABLE
            await gateway.acquire(1)
            assert (await gateway.next()).incarnation == 2


async def test_a_bounced_lease_waits_for_a_fresh_report() -> None:
    async with running_router() as (_, address), Worker(address) as worker, Gateway(address) as gateway:
        await gateway.acquire(1)
        granted = await gateway.next()
        await gateway.send(bounced=dispatch_pb2.Bounced(lease=granted.lease))
        assert isinstance(await gateway.next(), dispatch_pb2.Queued)
        await worker.report()
        again = await gateway.next()
        assert (again.request, again.lease != granted.lease) == (1, True)


async def test_a_standby_hears_all_workers_and_keeps_the_place_of_who_moves_there() -> None:
    async with (
        running_router() as (_, first),
        running_router() as (_, second),
        Worker(first, max_sequences=1),
        Worker(second, max_sequences=1) as heard_there,
        Gateway(second, "stays") as stays,
        Gateway(second, "moves") as moves,
    ):
        async with Gateway(first, "moves") as before:
            await before.acquire(1)
            assert isinstance(await before.next(), dispatch_pb2.Granted)
            await before.acquire(2)
            assert isinstance(await before.next(), dispatch_pb2.Queued)
        await heard_there.report(running=1)
        await stays.acquire(1)
        # The standby may grant before it has read the report: then a report of a full worker follows a bounce.
        answer = await stays.next()
        if isinstance(answer, dispatch_pb2.Granted):
            await stays.send(bounced=dispatch_pb2.Bounced(lease=answer.lease))
            answer = await stays.next()
            await heard_there.report(running=1)
        assert isinstance(answer, dispatch_pb2.Queued)
        await moves.acquire(2, waited_ms=60_000)
        queued = await moves.next()
        assert (queued.request, queued.position) == (2, 1), "it has waited longer"
        await heard_there.report()
        assert (await moves.next()).request == 2


async def test_rejections_travel_with_reason_and_detail() -> None:
    async with running_router(settle_s=0.05) as (_, address), Gateway(address) as gateway:
        await gateway.acquire(1, model="nobody")
        answer = await gateway.next()
        if isinstance(answer, dispatch_pb2.Queued):
            answer = await gateway.next()
        assert answer.reason == dispatch_pb2.UNKNOWN_MODEL
        assert "'nobody'" in answer.detail


async def test_a_deadline_ends_a_wait() -> None:
    async with running_router(models="m") as (_, address), Gateway(address) as gateway:
        await gateway.acquire(1, deadline_ms=50)
        assert isinstance(await gateway.next(), dispatch_pb2.Queued)
        assert (await gateway.next()).reason == dispatch_pb2.DEADLINE


async def test_a_drain_moves_waiting_requests_and_ends_the_streams() -> None:
    async with running_router(models="m") as (router, address), Gateway(address) as gateway:
        await gateway.acquire(1)
        assert isinstance(await gateway.next(), dispatch_pb2.Queued)
        async with channel(address) as plain:
            health: Any = health_pb2_grpc.HealthStub(plain)
            watch = health.Watch(health_pb2.HealthCheckRequest(service=""))
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.SERVING
            drain = asyncio.ensure_future(router.drain())
            assert (await gateway.next()).reason == dispatch_pb2.DRAINING
            assert (await watch.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            watch.cancel()
        assert await gateway.call.read() is grpc.aio.EOF
        assert await gateway.call.code() is grpc.StatusCode.OK
        await drain
        late = Gateway(address, "late")
        await late.send(hello=dispatch_pb2.GatewayHello(gateway_id="late"))
        assert (await _status(late.call))[0] is grpc.StatusCode.UNAVAILABLE
        await late.__aexit__()


@pytest.mark.parametrize(
    ("message", "names"),
    [
        ({"withdraw": dispatch_pb2.Withdraw(request=1)}, "hello"),
        ({"hello": dispatch_pb2.GatewayHello()}, "id"),
    ],
)
async def test_a_stream_begins_with_a_hello(message: dict[str, Any], names: str) -> None:
    async with running_router() as (_, address):
        gateway = Gateway(address)
        await gateway.send(**message)
        code, details = await _status(gateway.call)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert names in details
        await gateway.__aexit__()


@pytest.mark.parametrize(
    "message",
    [
        {"hello": dispatch_pb2.GatewayHello(gateway_id="again")},
        {"acquire": dispatch_pb2.Acquire(request=1, response_id="r", model="m", block_hashes=b"odd")},
        {},
    ],
    ids=["second hello", "bad hashes", "empty"],
)
async def test_a_gateway_that_breaks_the_contract_loses_its_stream_and_leases(message: dict[str, Any]) -> None:
    async with running_router() as (_, address), Worker(address, max_sequences=1), Gateway(address, "b") as other:
        async with Gateway(address) as gateway:
            await gateway.acquire(5)
            assert isinstance(await gateway.next(), dispatch_pb2.Granted)
            await other.acquire(1)
            assert isinstance(await other.next(), dispatch_pb2.Queued)
            await gateway.send(**message)
            assert (await _status(gateway.call))[0] is grpc.StatusCode.INVALID_ARGUMENT
        assert isinstance(await other.next(), dispatch_pb2.Granted)


async def test_a_request_number_that_is_alive_cannot_be_used_again() -> None:
    async with running_router(models="m") as (_, address), Gateway(address) as gateway:
        await gateway.acquire(1)
        await gateway.acquire(1)
        code, details = await _status(gateway.call)
        assert code is grpc.StatusCode.INVALID_ARGUMENT
        assert "request 1" in details


async def test_a_late_release_is_legal() -> None:
    async with running_router() as (_, address), Worker(address), Gateway(address) as gateway:
        await gateway.send(release=dispatch_pb2.Release(lease=12345))
        await gateway.send(withdraw=dispatch_pb2.Withdraw(request=99))
        await gateway.send(bounced=dispatch_pb2.Bounced(lease=12345))
        await gateway.send(refused=dispatch_pb2.Refused(lease=12345))
        await gateway.acquire(1)
        assert isinstance(await gateway.next(), dispatch_pb2.Granted)


@pytest.mark.parametrize(
    "message",
    [
        registry_pb2.WorkerMessage(report=registry_pb2.LoadReport()),
        registry_pb2.WorkerMessage(registration=registry_pb2.Registration(worker_id="w")),
        registry_pb2.WorkerMessage(),
    ],
    ids=["report first", "incomplete", "empty"],
)
async def test_a_worker_that_breaks_the_contract_is_refused(message: registry_pb2.WorkerMessage) -> None:
    async with running_router() as (_, address):
        worker = Worker(address)
        await worker.call.write(message)
        assert (await _status(worker.call))[0] is grpc.StatusCode.INVALID_ARGUMENT
        await worker.__aexit__()


@pytest.mark.parametrize(
    "settings",
    [{"gateway_unread_max": 16}, {"gateway_unread_max": 10_000_000, "gateway_stall_s": 0.2}],
    ids=["too many messages", "nothing taken for too long"],
)
async def test_a_gateway_that_does_not_read_is_cut_off_and_its_leases_released(settings: dict[str, Any]) -> None:
    async with (
        running_router(queue_requests_max=0, worker_timeout_s=60.0, **settings) as (_, address),
        Worker(address, max_sequences=1),
        Gateway(address, "deaf") as deaf,
    ):
        await deaf.acquire(1)
        assert isinstance(await deaf.next(), dispatch_pb2.Granted)
        # Refusals that nobody reads, until the flow-control window is full or the bound is met; at most 20 MB.
        for first in range(2, 200_000, 500):
            acquires = [
                dispatch_pb2.Acquire(request=number, model="m", response_id="r", prompt_tokens=1, max_tokens=1)
                for number in range(first, first + 500)
            ]
            messages = [dispatch_pb2.GatewayMessage(acquire=acquire) for acquire in acquires]
            try:
                await deaf.call.write(dispatch_pb2.GatewayBatch(messages=messages))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                break
        async with Gateway(address, "other") as other:
            await other.acquire(1)
            assert isinstance(await other.next(), dispatch_pb2.Granted)
        # UNAVAILABLE, or INTERNAL where the reset overtook the status: the client was still sending.
        assert (await _status(deaf.call))[0] in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL}


async def test_metrics_are_served(unused_tcp_port: int) -> None:
    async with (
        running_router(metrics_port=unused_tcp_port) as (_, address),
        Worker(address, max_sequences=1),
        Gateway(address) as gateway,
    ):
        for number, prompt_tokens in enumerate((16, 10_000, 16)):
            await gateway.acquire(number, prompt_tokens=prompt_tokens)
            await gateway.next()
        text = await asyncio.to_thread(_get, f"http://127.0.0.1:{unused_tcp_port}/metrics")
        for line in (
            'penstock_router_grants_total{class="interactive"} 1.0',
            'penstock_router_rejections_total{class="interactive",reason="too_large"} 1.0',
            'penstock_router_queue_requests{class="interactive",model="m"} 1.0',
            'penstock_router_workers{model="m"} 1.0',
            "penstock_router_leases 1.0",
            "penstock_router_gateways 1.0",
        ):
            assert line in text.splitlines()


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return str(answer.read(), "utf-8")


async def test_the_process_announces_itself_and_ends_on_sigterm(tmp_path: Path) -> None:
    announced = tmp_path / "router.json"
    command = [sys.executable, "-m", "services.router", "--port", "0", "--name", "router-0"]
    process = await asyncio.create_subprocess_exec(
        *command, "--announce", str(announced), stderr=asyncio.subprocess.PIPE
    )
    try:
        assert process.stderr is not None
        while b'"serving"' not in await process.stderr.readline():
            assert process.returncode is None
        about = json.loads(announced.read_text())
        assert about["pid"] == process.pid
        async with Worker(about["grpc"]), Gateway(about["grpc"]) as gateway:
            await gateway.acquire(1)
            assert isinstance(await gateway.next(), dispatch_pb2.Granted)
            process.terminate()
            assert await gateway.call.read() is grpc.aio.EOF
        await process.stderr.read()
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_a_wrong_setting_stops_the_start_with_its_name() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.router", "--queue-requests-max", "-1", stderr=asyncio.subprocess.PIPE
    )
    _, stderr = await process.communicate()
    assert process.returncode == 2
    assert b"PENSTOCK_QUEUE_REQUESTS_MAX" in stderr
