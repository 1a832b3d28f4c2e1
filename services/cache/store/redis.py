"""The store on Redis, shared by all cache services: pipelined, bounded in time, and never needed.

Entries are plain strings with a lifetime; Redis itself bounds the memory (`maxmemory` with `allkeys-lru`). What
concurrent callers ask for leaves in one pipeline: while one is on its way, the next gathers. Writes announce their key
(PUBLISH) so that the other services drop their copies. Announcements and not RESP3 tracking, because redis-py's asyncio
client leaves the handling of tracking's push messages to its innards, because leases need the same messages, and
because announcements cost Redis nothing per key read.
"""

from __future__ import annotations

import asyncio
import os
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.exceptions import RedisError

from services.cache.store.base import Found, StoreStats
from services.cache.store.link import CHANNEL, Down, RedisLink
from services.common.rpc import Outbox

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio.client import Pipeline

VALUE, LEASE = b"penstock:cache:v:", b"penstock:cache:l:"
PUT, RELEASED = b"p", b"r"
WAITING_MAX = 4096
WAITING_BYTES_MAX = 64 * 1024 * 1024
BATCH_MAX = 256
BATCH_BYTES_MAX = 8 * 1024 * 1024
DIRTY_MAX = 65_536
_RENEW = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('pexpire', KEYS[1], ARGV[2]) end return 0"
_RELEASE = """if redis.call('get', KEYS[1]) ~= ARGV[1] then return 0 end
redis.call('publish', ARGV[2], ARGV[3])
return redis.call('del', KEYS[1])"""


class _Ask(NamedTuple):
    fill: Callable[[Pipeline], int]
    """Adds its commands; how many."""
    size: int
    answer: asyncio.Future[list[Any]]


class _Lane:
    """Commands of concurrent callers on their way, one pipeline at a time."""

    def __init__(self, link: RedisLink) -> None:
        self._link = link
        self._asks: Outbox[_Ask] = Outbox(WAITING_MAX)
        self._bytes = 0

    async def do(self, fill: Callable[[Pipeline], int], size: int = 0) -> list[Any]:
        """The answers to the commands that `fill` adds, `size` bytes of values among them.

        Raises:
            Down: Redis is not there, or too much waits for it.
            RedisError: it refused a command.
        """
        if not self._link.up:
            raise Down("Redis is down")
        if self._bytes + size > WAITING_BYTES_MAX:
            raise Down("too much waits for Redis")
        ask = _Ask(fill, size, asyncio.get_running_loop().create_future())
        try:
            self._asks.put(ask)
        except BufferError:
            raise Down("too many wait for Redis") from None
        self._bytes += size
        answers = await ask.answer
        for answer in answers:
            if isinstance(answer, RedisError):
                raise answer
        return answers

    async def run(self) -> None:
        """Send what is asked, for ever."""
        while asks := await self._asks.take():
            while asks:
                size = count = 0
                for ask in asks[:BATCH_MAX]:
                    size += ask.size
                    count += 1
                    if size >= BATCH_BYTES_MAX:
                        break
                batch, asks = asks[:count], asks[count:]
                try:
                    await self._send(batch)
                finally:
                    self._bytes -= size

    async def _send(self, batch: list[_Ask]) -> None:
        wanted = [ask for ask in batch if not ask.answer.done()]  # the others were cancelled
        if not wanted:
            return
        counts: list[int] = []

        def fill(pipeline: Pipeline) -> None:
            counts.extend(ask.fill(pipeline) for ask in wanted)

        try:
            answers = await self._link.pipeline(fill)
        except Down as error:
            for ask in wanted:
                if not ask.answer.done():
                    ask.answer.set_exception(Down(str(error)))
            return
        for ask, count in zip(wanted, counts, strict=True):
            mine, answers = answers[:count], answers[count:]
            if not ask.answer.done():
                ask.answer.set_result(mine)


class RedisStore:
    """A `Store` on one Redis.

    Args:
        link: the connection, not yet started; told of announcements by others through `on_announcement`.
        on_announcement: called with the kind (`PUT`, `RELEASED`) and the key of what another service did.
        on_up: called with whether Redis still has its data, whenever it is there again.
    """

    name = "redis"

    def __init__(
        self,
        link: RedisLink,
        on_announcement: Callable[[bytes, bytes], None] = lambda _kind, _key: None,
        on_up: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._link = link
        self._on_announcement = on_announcement
        self._on_up = on_up
        self._me = os.urandom(8)
        self._reads, self._writes = _Lane(link), _Lane(link)
        self._dirty: dict[bytes, None] = {}
        self._hits = self._misses = self._failures = 0

    @property
    def up(self) -> bool:
        """Whether Redis is there."""
        return self._link.up

    async def start(self, tasks: asyncio.TaskGroup) -> None:
        """See `Store`: returns when Redis is there, or was tried once."""
        for lane in (self._reads, self._writes):
            tasks.create_task(lane.run(), name="cache-redis")
        await self._link.start(tasks, self)

    async def get(self, key: bytes) -> bytes | None:
        """See `Store`."""
        found = await self.lookup(key)
        return None if found is None else found.value

    async def lookup(self, key: bytes) -> Found | None:
        """The value with the rest of its lifetime; None as well when Redis can't be asked."""

        def commands(pipe: Pipeline) -> int:
            pipe.get(VALUE + key)
            pipe.pttl(VALUE + key)
            return 2

        try:
            value, ttl_ms = await self._reads.do(commands)
        except (Down, RedisError):
            self._failures += 1
            return None
        if value is None or ttl_ms <= 0:
            self._misses += 1
            return None
        self._hits += 1
        return Found(value, ttl_ms / 1000)

    async def put(self, key: bytes, value: bytes, ttl_s: float, *, fill: bool = False) -> bool:
        """See `Store`; the key's lease ends with it. `fill`: only where there is none, nobody need hear of it."""
        lifetime_ms = max(1, int(ttl_s * 1000))

        def commands(pipe: Pipeline) -> int:
            pipe.set(VALUE + key, value, px=lifetime_ms, nx=fill)
            if fill:
                return 1
            pipe.delete(LEASE + key)
            pipe.publish(CHANNEL, self._me + PUT + key)
            return 3

        try:
            answers = await self._writes.do(commands, len(value))
        except (Down, RedisError):
            self._failures += 1
            if not fill:
                self._mark_dirty(key)
            return False
        return bool(answers[0])

    async def delete(self, key: bytes) -> bool:
        """See `Store`."""

        def commands(pipe: Pipeline) -> int:
            pipe.delete(VALUE + key)
            pipe.publish(CHANNEL, self._me + PUT + key)
            return 2

        try:
            return bool((await self._writes.do(commands))[0])
        except (Down, RedisError):
            self._failures += 1
            self._mark_dirty(key)
            return False

    async def lease(self, key: bytes, owner: bytes, lease_ms: int) -> tuple[bool, int]:
        """Take the lease of `key`: whether it is `owner`'s now, and the ms after which it ends.

        Raises:
            Down: Redis can't be asked.
        """

        def commands(pipe: Pipeline) -> int:
            pipe.set(LEASE + key, owner, nx=True, px=lease_ms)
            pipe.get(LEASE + key)
            pipe.pttl(LEASE + key)
            return 3

        try:
            _, holder, left_ms = await self._reads.do(commands)
        except RedisError as error:
            raise Down(str(error)) from error
        return holder == owner, max(1, left_ms)

    async def renew(self, leases: list[tuple[bytes, bytes]], lease_ms: int) -> int:
        """Prolong what still is its owner's; how many. Redis gone: none, and nobody minds."""

        def commands(pipe: Pipeline) -> int:
            for key, owner in leases:
                pipe.eval(_RENEW, 1, LEASE + key, owner, str(lease_ms))
            return len(leases)

        try:
            return sum(map(int, await self._writes.do(commands)))
        except (Down, RedisError):
            return 0

    async def release(self, key: bytes, owner: bytes) -> None:
        """End a lease and tell the other services; it ends by itself when Redis can't be asked."""
        said = self._me + RELEASED + key

        def commands(pipe: Pipeline) -> int:
            pipe.eval(_RELEASE, 1, LEASE + key, owner, CHANNEL, said)
            return 1

        try:
            await self._writes.do(commands)
        except (Down, RedisError):
            self._failures += 1

    async def stats(self) -> StoreStats:
        """See `Store`: fill and evictions are Redis's own, all of its users together."""
        info: dict[str, Any] = {}
        entries = 0

        def commands(pipe: Pipeline) -> int:
            pipe.info()
            pipe.dbsize()
            return 2

        try:
            info, entries = await self._reads.do(commands)
        except (Down, RedisError):
            self._failures += 1
        return StoreStats(
            entries=entries,
            bytes=int(info.get("used_memory", 0)),
            bytes_max=int(info.get("maxmemory", 0)),
            hits=self._hits,
            misses=self._misses,
            evictions=int(info.get("evicted_keys", 0)),
            failures=self._failures,
        )

    async def close(self) -> None:
        """See `Store`."""
        await self._link.close()

    def _mark_dirty(self, key: bytes) -> None:
        """Redis may hold an older value than ours: it is deleted before Redis answers again."""
        self._dirty[key] = None
        if len(self._dirty) > DIRTY_MAX:
            del self._dirty[next(iter(self._dirty))]

    def dirty(self, limit: int) -> list[bytes]:
        """See `User`."""
        return [VALUE + key for key in islice(self._dirty, limit)]

    def cleaned(self, keys: list[bytes]) -> None:
        """See `User`."""
        for key in keys:
            self._dirty.pop(key.removeprefix(VALUE), None)

    def came_up(self, kept_data: bool) -> None:
        """See `User`."""
        self._on_up(kept_data)

    def heard(self, data: bytes) -> None:
        """See `User`."""
        sender, kind, key = data[:8], data[8:9], data[9:]
        if sender != self._me:
            self._on_announcement(kind, key)
