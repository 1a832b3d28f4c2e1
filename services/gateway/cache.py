"""The exact response cache as the gateway uses it: token ids and ends of responses, by all that shapes them.

A cached answer is replayed through the same `Choice` code as a fresh one, so its text and ids are the same. The cache
is never needed: when its service is slow or gone, requests go on as misses and
`penstock_response_cache{result="degraded"}` says so.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import grpc.aio
import orjson
from penstock.v1 import cache_pb2, cache_pb2_grpc

from services.common import rpc

if TYPE_CHECKING:
    import asyncio

    from services.gateway.metrics import Metrics

log = logging.getLogger(__name__)

GET_TIMEOUT_S = 0.1
PUT_TIMEOUT_S = 2.0
PUTS_MAX = 64
"""Writes under way at once; more are dropped, for a lost write costs a hit and nothing else."""
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class CachedChoice:
    """One choice: its token ids and why it ended (`stop`, `length`)."""

    tokens: list[int]
    reason: str


class ResponseCache:
    """Client of the cache service."""

    def __init__(self, address: str, metrics: Metrics) -> None:
        self._channel = rpc.channel(address)
        self._stub = cache_pb2_grpc.CacheStub(self._channel)
        self._metrics = metrics
        self._puts: asyncio.TaskGroup | None = None
        self._running = 0
        self._degraded = False

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """The owner of writes."""
        self._puts = tasks

    async def close(self) -> None:
        """Close the channel."""
        await self._channel.close()

    async def get(self, key: bytes) -> list[CachedChoice] | None:
        """The response under `key`, or None."""
        try:
            answer = await self._stub.Get(cache_pb2.GetRequest(key=key), timeout=GET_TIMEOUT_S)
            found = _parse(answer.value) if answer.found else None
        except grpc.aio.AioRpcError as error:
            self._degrade(f"{error.code().name}: {error.details()}")
            return None
        except ValueError as error:
            self._degrade(str(error))
            return None
        self._degraded = False
        self._metrics.cache.labels("miss" if found is None else "hit").inc()
        return found

    def put(self, key: bytes, choices: list[CachedChoice]) -> None:
        """Store in the background; dropped when too many writes are under way."""
        if self._puts is None or self._running >= PUTS_MAX:
            return
        value = orjson.dumps({"v": _FORMAT, "choices": [[each.tokens, each.reason] for each in choices]})
        self._running += 1
        self._puts.create_task(self._put(key, value), name="cache-put")

    async def _put(self, key: bytes, value: bytes) -> None:
        try:
            await self._stub.Put(cache_pb2.PutRequest(key=key, value=value), timeout=PUT_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            self._degrade(f"{error.code().name}: {error.details()}")
        finally:
            self._running -= 1

    def _degrade(self, reason: str) -> None:
        self._metrics.cache.labels("degraded").inc()
        if not self._degraded:
            self._degraded = True
            log.warning("response cache degraded: answers go on uncached", extra={"reason": reason})


def _parse(value: bytes) -> list[CachedChoice]:
    """Read a stored value; ValueError when it is none of ours."""
    data = orjson.loads(value)
    if not isinstance(data, dict) or data.get("v") != _FORMAT or not isinstance(data.get("choices"), list):
        raise ValueError("a cached response of another format")
    return [_choice(entry) for entry in data["choices"]]


def _choice(entry: object) -> CachedChoice:
    if isinstance(entry, list) and len(entry) == 2:
        tokens, reason = entry
        if isinstance(tokens, list) and isinstance(reason, str) and all(_is_token(token) for token in tokens):
            return CachedChoice(tokens, reason)
    raise ValueError("a cached response with a broken choice")


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**32
