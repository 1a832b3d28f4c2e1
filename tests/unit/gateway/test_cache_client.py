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
        self.put = asyncio.Event()

    async def Get(self, request: cache_pb2.GetRequest, context: Any) -> cache_pb2.GetResponse:
        if self.failing:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "broken")
        value = self.values.get(request.key)
        return cache_pb2.GetResponse(found=value is not None, value=value or b"")

    async def Put(self, request: cache_pb2.PutRequest, context: Any) -> cache_pb2.PutResponse:
        self.values[request.key] = request.value
        self.put.set()
        return cache_pb2.PutResponse()


class Client:
    """A client of a fake cache."""

    def __init__(self, cache: ResponseCache, service: FakeCache, metrics: Metrics) -> None:
        self.cache, self.service, self._metrics = cache, service, metrics

    def count(self, result: str) -> float:
        return self._metrics.registry.get_sample_value("penstock_response_cache_total", {"result": result}) or 0


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
            cache.start(tasks)
            yield Client(cache, service, metrics)
    finally:
        await cache.close()
        await server.stop()


async def test_what_was_put_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    choices = [CachedChoice([1, 2**32 - 1], "stop"), CachedChoice([], "length")]
    async with client(monkeypatch) as mesh:
        assert await mesh.cache.get(KEY) is None
        mesh.cache.put(KEY, choices)
        await mesh.service.put.wait()
        assert await mesh.cache.get(KEY) == choices
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
        assert await mesh.cache.get(KEY) is None
        assert (mesh.count("miss"), mesh.count("hit"), mesh.count("degraded")) == (0, 0, 1)


async def test_a_failing_service_is_a_miss_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with client(monkeypatch) as mesh:
        mesh.service.failing = True
        assert await mesh.cache.get(KEY) is None
        assert await mesh.cache.get(KEY) is None
        assert mesh.count("degraded") == 2
        assert [record.message for record in caplog.records if "degraded" in record.message] == [
            "response cache degraded: answers go on uncached"
        ]
        mesh.service.failing = False
        mesh.service.values[KEY] = orjson.dumps({"v": 1, "choices": [[[1], "stop"]]})
        assert await mesh.cache.get(KEY) == [CachedChoice([1], "stop")]


async def test_writes_beyond_the_bound_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PUTS_MAX", 2)
    async with client(monkeypatch) as mesh:
        for number in range(5):
            mesh.cache.put(bytes([number]) * 32, [CachedChoice([number], "stop")])
    assert len(mesh.service.values) == 2
