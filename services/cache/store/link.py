"""One Redis, there or not: connects, notices when it is gone, fails fast until it is back."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio.client import Pipeline, PubSub

log = logging.getLogger(__name__)

CHANNEL = b"penstock:cache"
BACKOFF_S_MIN = 0.05
BACKOFF_S_MAX = 2.0
CONNECT_S_MAX = 1.0
PING_S = 5.0
"""A subscription that is silent for so long is asked whether it lives."""
DELETES_MAX = 1000
TIMEOUTS_MAX = 3
"""Commands in a row that got no answer in time, after which Redis counts as gone."""
_GONE = (RedisConnectionError, RedisTimeoutError, TimeoutError, OSError)


class Down(Exception):
    """Redis can't be asked now."""


class User(Protocol):
    """Who uses the link, and what it is told."""

    def heard(self, data: bytes) -> None:
        """A message came on the channel."""

    def dirty(self, limit: int) -> list[bytes]:
        """Redis keys that must go before Redis may answer again."""

    def cleaned(self, keys: list[bytes]) -> None:
        """They are gone."""

    def came_up(self, kept_data: bool) -> None:
        """Redis is there, with data or empty. What was said on the channel meanwhile was missed."""


class RedisLink:
    """Connections to one Redis. While it is gone one task tries to get it back, and every call fails at once.

    Args:
        url: `redis://[[user]:password@]host:port[/db]`, `rediss://`, `unix:///path`.
        timeout_s: bound on one pipeline.

    Raises:
        ValueError: the URL is none.
    """

    def __init__(self, url: str, *, timeout_s: float) -> None:
        self._client = redis.asyncio.Redis.from_url(
            url, protocol=3, socket_timeout=None, socket_connect_timeout=CONNECT_S_MAX, max_connections=8,
            retry=Retry(NoBackoff(), 0), health_check_interval=0,
        )  # fmt: skip
        self._timeout_s = timeout_s
        self._timeouts = 0
        self._lost: asyncio.Future[NoReturn] | None = None
        self._tried = asyncio.Event()
        self._said_down = False
        self._closed = False
        self.up = False

    async def start(self, tasks: asyncio.TaskGroup, user: User) -> None:
        """Connect and stay connected; returns after the first attempt, whatever came of it."""
        self._user = user
        tasks.create_task(self._keep(), name="cache-redis-link")
        await self._tried.wait()

    async def close(self) -> None:
        """Let go of all connections."""
        self._closed = True
        self.up = False
        await self._client.aclose()

    async def pipeline(self, fill: Callable[[Pipeline], None]) -> list[Any]:
        """The answers to a pipeline, errors of single commands among them.

        Raises:
            Down: no answer, or not in time.
        """
        try:
            async with asyncio.timeout(self._timeout_s), self._client.pipeline(transaction=False) as pipe:
                fill(pipe)
                answers: list[Any] = await pipe.execute(raise_on_error=False)
        except (TimeoutError, RedisTimeoutError) as error:
            self._timeouts += 1
            if self._timeouts >= TIMEOUTS_MAX:
                self._gone(error)
            raise Down("no answer in time") from None
        except _GONE as error:
            self._gone(error)
            raise Down(str(error)) from error
        self._timeouts = 0
        return answers

    def _gone(self, error: BaseException) -> None:
        self.up = False
        if self._lost is not None and not self._lost.done():
            self._lost.set_exception(Down(str(error) or type(error).__name__))

    async def _keep(self) -> None:
        backoff_s = BACKOFF_S_MIN
        while not self._closed:
            try:
                await self._session()
            except* (Down, RedisError, TimeoutError, OSError) as errors:
                if self._lost is not None:  # it was up
                    backoff_s = BACKOFF_S_MIN
                self._note_down(errors)
            finally:
                self.up, self._lost = False, None
                self._tried.set()
            _heed_cancellation()
            await asyncio.sleep(backoff_s * random.uniform(0.5, 1.0))
            backoff_s = min(BACKOFF_S_MAX, backoff_s * 2)

    def _note_down(self, errors: BaseExceptionGroup[BaseException]) -> None:
        first: BaseException = errors
        while isinstance(first, BaseExceptionGroup):
            first = first.exceptions[0]
        if not self._said_down and not self._closed:
            self._said_down = True
            log.warning("Redis is gone: cache degraded", extra={"reason": str(first) or type(first).__name__})

    async def _session(self) -> None:
        """From one connection to its loss.

        Raises:
            Exception: why it ended (a group, or one); see `_keep`.
        """
        async with self._client.pubsub() as subscription:
            async with asyncio.timeout(CONNECT_S_MAX):
                await subscription.subscribe(CHANNEL)
                await self._clean()
            self._lost = asyncio.get_running_loop().create_future()
            self._timeouts = 0
            self.up = True
            self._tried.set()
            if self._said_down:
                self._said_down = False
                log.warning("Redis is back")
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._listen(subscription))
                await self._lost

    async def _clean(self) -> None:
        """Delete what was overwritten or deleted while Redis could not be told.

        Raises:
            RedisError: it can't be; the session does not begin.
        """
        kept_data = bool(await self._client.dbsize())
        while dirty := self._user.dirty(DELETES_MAX):
            await self._client.delete(*dirty)
            self._user.cleaned(dirty)
        self._user.came_up(kept_data)

    async def _listen(self, subscription: PubSub) -> NoReturn:
        asked = False
        while True:
            message = await subscription.get_message(ignore_subscribe_messages=False, timeout=PING_S)
            if message is None:
                if asked:
                    raise Down("the subscription is silent")
                asked = True
                await subscription.ping()
                continue
            asked = False
            if message["type"] == "message":
                self._user.heard(message["data"])


def _heed_cancellation() -> None:
    """A task group that fails and is cancelled at once raises only its failure (CPython 3.11): cancel again.

    Raises:
        asyncio.CancelledError: this task was told to end.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
