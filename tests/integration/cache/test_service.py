"""The cache service as a process, over gRPC."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import grpc.aio
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from penstock.v1 import cache_pb2, cache_pb2_grpc

from services.common.rpc import channel
from tests.redis_server import needs_redis, redis_server

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable
    from pathlib import Path

    from google.protobuf.message import Message

KEY = b"k" * 32


@asynccontextmanager
async def running(tmp_path: Path, *flags: str) -> AsyncIterator[tuple[asyncio.subprocess.Process, str]]:
    """The service in a process of its own, and its address."""
    file = tmp_path / "cache-0.json"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cache", "--name", "cache-0", "--announce", str(file), *flags,
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        async with asyncio.timeout(30):
            async for line in process.stderr:
                if json.loads(line)["message"] == "serving":
                    break
        yield process, json.loads(file.read_text())["grpc"]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def test_put_get_delete_stats(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, address), channel(address) as wire:
        cache = cache_pb2_grpc.CacheStub(wire)
        assert not (await cache.Get(cache_pb2.GetRequest(key=KEY))).found
        assert (await cache.Put(cache_pb2.PutRequest(key=KEY, value=b"\0answer"))).stored
        got = await cache.Get(cache_pb2.GetRequest(key=KEY))
        assert (got.found, got.value) == (True, b"\0answer")
        assert (await cache.Delete(cache_pb2.DeleteRequest(key=KEY))).deleted
        stats = await cache.Stats(cache_pb2.StatsRequest())
        assert (stats.entries, stats.hits, stats.misses, stats.store) == (0, 1, 1, "memory")


async def test_bad_requests_name_the_field(tmp_path: Path) -> None:
    flags = ("--cache-value-bytes-max", "1024", "--cache-ttl-s-max", "7200")
    async with running(tmp_path, *flags) as (_, address), channel(address) as wire:
        cache = cache_pb2_grpc.CacheStub(wire)
        bad: dict[str, list[Awaitable[Message]]] = {
            "key": [
                cache.Get(cache_pb2.GetRequest(key=b"short")),
                cache.Put(cache_pb2.PutRequest(key=bytes(65))),
                cache.Delete(cache_pb2.DeleteRequest()),
            ],
            "value": [cache.Put(cache_pb2.PutRequest(key=KEY, value=bytes(1025)))],
            "ttl_s": [cache.Put(cache_pb2.PutRequest(key=KEY, value=b"x", ttl_s=7201))],
        }
        for field, calls in bad.items():
            for call in calls:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
                assert (caught.value.details() or "").startswith(f"{field} ")
                assert violated_field(caught.value) == field


def violated_field(error: grpc.aio.AioRpcError) -> str:
    """The field that the error's BadRequest detail names."""
    status = status_pb2.Status()
    status.ParseFromString(error.trailing_metadata()["grpc-status-details-bin"])
    detail = error_details_pb2.BadRequest()
    for packed in status.details:
        if packed.Unpack(detail):
            return str(detail.field_violations[0].field)
    return ""


async def test_health_and_reflection(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, address):
        async with channel(address) as wire:
            health = health_pb2_grpc.HealthStub(wire)
            for name in ("", "penstock.v1.Cache"):
                answer = await health.Check(health_pb2.HealthCheckRequest(service=name))
                assert answer.status == health_pb2.HealthCheckResponse.SERVING
        names = await asyncio.to_thread(reflected_services, address)
        assert "penstock.v1.Cache" in names


def reflected_services(address: str) -> list[str]:
    """What server reflection lists."""
    with grpc.insecure_channel(address) as wire:
        return list(ProtoReflectionDescriptorDatabase(wire).get_services())


async def test_sigterm_ends_it_with_status_0(tmp_path: Path) -> None:
    async with running(tmp_path) as (process, _):
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(20):
            assert await process.wait() == 0


async def test_a_taken_port_is_an_error_that_names_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, address):
        port = address.rpartition(":")[2]
        second = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "services.cache", "--port", port, stderr=asyncio.subprocess.PIPE
        )
        async with asyncio.timeout(30):
            _, err = await second.communicate()
        assert second.returncode != 0
        assert f"cannot listen on 127.0.0.1:{port}" in err.decode()


async def test_one_makes_the_value_and_the_others_get_it(tmp_path: Path) -> None:
    async with running(tmp_path) as (_, address), channel(address) as wire:
        cache = cache_pb2_grpc.CacheStub(wire)

        def ask(owner: bytes, wait_ms: int) -> Awaitable[cache_pb2.GetOrLeaseResponse]:
            return cache.GetOrLease(
                cache_pb2.GetOrLeaseRequest(key=KEY, owner=owner, lease_ms=60_000, wait_ms=wait_ms), timeout=60
            )

        assert (await ask(b"first", 0)).outcome == cache_pb2.GetOrLeaseResponse.LEAD
        assert (await ask(b"second", 0)).outcome == cache_pb2.GetOrLeaseResponse.WAIT
        waiting = [asyncio.ensure_future(ask(bytes([number]), 60_000)) for number in range(1, 20)]
        assert (await ask(b"third", 1)).outcome == cache_pb2.GetOrLeaseResponse.WAIT
        lease = cache_pb2.RenewLeasesRequest.Lease(key=KEY, owner=b"first")
        renewal = cache_pb2.RenewLeasesRequest(leases=[lease], lease_ms=60_000)
        assert (await cache.RenewLeases(renewal)).renewed == 1
        assert (await cache.ReleaseLease(cache_pb2.ReleaseLeaseRequest(key=KEY, owner=b"first"))).released
        done, others = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=30)
        assert [task.result().outcome for task in done] == [cache_pb2.GetOrLeaseResponse.LEAD], "the next, alone"
        await cache.Put(cache_pb2.PutRequest(key=KEY, value=b"made"))
        answers = [await task for task in others]
        assert {(answer.outcome, answer.value) for answer in answers} == {(cache_pb2.GetOrLeaseResponse.FOUND, b"made")}


@needs_redis
async def test_redis_and_disk_hold_what_a_restarted_service_forgot(tmp_path: Path) -> None:
    (tmp_path / "redis").mkdir()
    async with redis_server(tmp_path / "redis") as server:
        flags = ("--redis", server.url, "--disk", str(tmp_path / "disk"), "--disk-bytes-max", "1048576")
        for number in range(2):
            async with running(tmp_path, *flags) as (process, address), channel(address) as wire:
                cache = cache_pb2_grpc.CacheStub(wire)
                assert (await cache.Get(cache_pb2.GetRequest(key=KEY))).found == (number > 0)
                await cache.Put(cache_pb2.PutRequest(key=KEY, value=b"x"))
                stats = await cache.Stats(cache_pb2.StatsRequest())
                assert stats.store == "memory+redis+disk"
                assert [(tier.name, tier.up, tier.entries) for tier in stats.tiers] == [
                    ("memory", True, 1), ("redis", True, 1), ("disk", True, 1),
                ]  # fmt: skip
                process.send_signal(signal.SIGTERM)
                await process.wait()
                assert process.returncode == 0
        await server.kill()
        async with running(tmp_path, *flags) as (_, address), channel(address) as wire:
            got = await cache_pb2_grpc.CacheStub(wire).Get(cache_pb2.GetRequest(key=KEY))
            assert (got.value, got.degraded) == (b"x", True), "from the disk, without Redis"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--redis", "http://localhost"), "PENSTOCK_REDIS (--redis)"),
        (("--disk", "/proc/nowhere"), "PENSTOCK_DISK (--disk)"),
        (("--disk-bytes-max", "1"), "PENSTOCK_DISK_BYTES_MAX (--disk-bytes-max)"),
    ],
)
async def test_wrong_tiers_stop_the_start_by_name(flags: tuple[str, ...], message: str) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "services.cache", *flags, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(30):
        _, err = await process.communicate()
    assert process.returncode != 0
    assert message in err.decode()
