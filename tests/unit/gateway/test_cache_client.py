"""The response cache as a gateway uses it: never needed, never trusted."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import grpc
import orjson
import pytest
from penstock.v1 import cache_pb2, cache_pb2_grpc

from services.common import rpc
from services.gateway import cache as module
from services.gateway.cache import CachedChoice, ResponseCache
from services.gateway.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

KEY = b"k" * 32


class FakeCache(cache_pb2_grpc.CacheServicer):
    """Holds values; `get_value` in place of them, `failing` refuses."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.failing = False
        self.degraded = False
        self.put = asyncio.Event()
        self.released: asyncio.Queue[bytes] = asyncio.Queue(100)
        self.renewed: asyncio.Queue[list[bytes]] = asyncio.Queue(100)

    async def GetOrLease(self, request: cache_pb2.GetOrLeaseRequest, context: Any) -> cache_pb2.GetOrLeaseResponse:
        if self.failing:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
        value = self.values.get(request.key)
        if value is not None:
            return cache_pb2.GetOrLeaseResponse(outcome=cache_pb2.GetOrLeaseResponse.FOUND, value=value)
        return cache_pb2.GetOrLeaseResponse(outcome=cache_pb2.GetOrLeaseResponse.LEAD, degraded=self.degraded)

    async def ReleaseLease(
        self, request: cache_pb2.ReleaseLeaseRequest, context: Any
    ) -> cache_pb2.ReleaseLeaseResponse:
        self.released.put_nowait(request.owner)
        return cache_pb2.ReleaseLeaseResponse(released=True)

    async def RenewLeases(self, request: cache_pb2.RenewLeasesRequest, context: Any) -> cache_pb2.RenewLeasesResponse:
        self.renewed.put_nowait([lease.owner for lease in request.leases])
        return cache_pb2.RenewLeasesResponse(renewed=len(request.leases))

    async def Put(self, request: cache_pb2.PutRequest, context: Any) -> cache_pb2.PutResponse:
        self.values[request.key] = request.value
        self.put.set()
        return cache_pb2.PutResponse()


class Client:
    """A client of a fake cache."""

    def __init__(self, cache: ResponseCache, service: FakeCache, metrics: Metrics) -> None:
        self.cache, self.service, self._metrics = cache, service, metrics

    async def get(self, key: bytes) -> list[CachedChoice] | None:
        return (await self.cache.get_or_lead(key, "me", None)).found

    def count(self, result: str) -> float:
        return self._metrics.registry.get_sample_value("penstock_response_cache_total", {"result": result}) or 0


async def _own(cache: ResponseCache) -> None:
    async with asyncio.TaskGroup() as tasks:
        cache.start(tasks)


@asynccontextmanager
async def client(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    monkeypatch.setattr(module, "GET_TIMEOUT_S", 10.0)  # a busy machine is not what is tested
    service = FakeCache()  # type: ignore[abstract]  # a gateway only gets and puts
    server, metrics = rpc.Server(), Metrics()
    cache_pb2_grpc.add_CacheServicer_to_server(service, server.grpc)
    address = await server.start("127.0.0.1", 0, ["penstock.v1.Cache"])
    cache = ResponseCache(address, metrics)
    try:
        async with asyncio.TaskGroup() as tasks:
            owned = tasks.create_task(_own(cache))
            await asyncio.sleep(0)
            yield Client(cache, service, metrics)
            while cache._running:  # noqa: ASYNC110 - until writes are done
                await asyncio.sleep(0)
            owned.cancel()
    finally:
        await cache.close()
        await server.stop()


async def test_what_was_put_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = [CachedChoice([1, 2**32 - 1], "stop"), CachedChoice([], "length")]
    async with client(monkeypatch) as mesh:
        assert await mesh.get(KEY) is None
        mesh.cache.put(KEY, "me", choices)
        await mesh.service.put.wait()
        assert await mesh.get(KEY) == choices
        assert (mesh.count("miss"), mesh.count("hit"), mesh.count("degraded")) == (1, 1, 0)


@pytest.mark.parametrize(
    "value",
    [
        b"", b"{", b"[]", b"null", b"\xff", b'{"v":0,"choices":[]}', b'{"v":1}', b'{"v":1,"choices":{}}',
        b'{"v":1,"choices":[1]}', b'{"v":1,"choices":[[[1],"stop",3]]}', b'{"v":1,"choices":[[["a"],"stop"]]}',
        b'{"v":1,"choices":[[[-1],"stop"]]}', b'{"v":1,"choices":[[[1.5],"stop"]]}', b'{"v":1,"choices":[[[1],2]]}',
        b'{"v":1,"choices":[[[true],"stop"]]}', b'{"v":1,"choices":[[[4294967296],"stop"]]}',
    ],
)  # fmt: skip
async def test_a_broken_entry_is_a_miss(monkeypatch: pytest.MonkeyPatch, value: bytes) -> None:
    async with client(monkeypatch) as mesh:
        mesh.service.values[KEY] = value
        assert await mesh.get(KEY) is None
        assert (mesh.count("miss"), mesh.count("hit"), mesh.count("degraded")) == (0, 0, 1)


async def test_a_failing_service_is_a_miss_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(monkeypatch) as mesh:
        mesh.service.failing = True
        assert await mesh.get(KEY) is None
        assert await mesh.get(KEY) is None
        assert mesh.count("degraded") == 2
        assert [record.message for record in caplog.records if "degraded" in record.message] == [
            "response cache degraded: answers go on uncached"
        ]
        mesh.service.failing = False
        mesh.service.values[KEY] = orjson.dumps({"v": 1, "choices": [[[1], "stop"]]})
        assert await mesh.get(KEY) == [CachedChoice([1], "stop")]


async def test_writes_beyond_the_bound_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PUTS_MAX", 2)
    async with client(monkeypatch) as mesh:
        for number in range(5):
            mesh.cache.put(bytes([number]) * 32, "me", [CachedChoice([number], "stop")])
    assert len(mesh.service.values) == 2


async def test_a_leader_that_fails_lets_the_next_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(monkeypatch) as mesh:
        assert (await mesh.cache.get_or_lead(KEY, "me", None)).leads
        mesh.cache.release(KEY, "another")
        mesh.cache.release(KEY, "me")
        mesh.cache.release(KEY, "me")
        assert await mesh.service.released.get() == b"me"
    assert mesh.service.released.empty()


async def test_a_leader_is_heard_of_while_it_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEASE_S", 0.05)
    async with client(monkeypatch) as mesh:
        await mesh.cache.get_or_lead(KEY, "me", None)
        assert await mesh.service.renewed.get() == [b"me"]


async def test_a_miss_without_all_tiers_is_degraded(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client(monkeypatch) as mesh:
        mesh.service.degraded = True
        assert (await mesh.cache.get_or_lead(KEY, "me", None)).leads
        assert (mesh.count("miss"), mesh.count("degraded")) == (0, 1)
