"""A real redis-server of a test's own: loopback port, own directory, ended by pid."""

from __future__ import annotations

import asyncio
import shutil
import socket
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING

import pytest
import redis.asyncio
from redis.exceptions import RedisError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

BINARY = shutil.which("redis-server")
START_S_MAX = 20.0

needs_redis = pytest.mark.skipif(BINARY is None, reason="no redis-server binary here: apt-get install redis-server")


class RedisServer:
    """One server that can be killed and started again at the same address."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self._directory = directory
        self._flags = flags
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Run it until it answers."""
        assert BINARY is not None
        self.process = await asyncio.create_subprocess_exec(
            BINARY, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no",
            "--dir", str(self._directory), "--daemonize", "no", *self._flags,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert self.process.stdout is not None
        async with asyncio.timeout(START_S_MAX):
            async for line in self.process.stdout:
                if b"Ready to accept connections" in line:
                    return
        raise AssertionError("redis-server ended before it was ready")

    async def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        process, self.process = self.process, None
        if process is not None:
            with suppress(ProcessLookupError):
                process.kill()
            await process.communicate()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[redis.asyncio.Redis]:
        """A client for looking inside."""
        client = redis.asyncio.Redis.from_url(self.url)
        try:
            yield client
        finally:
            with suppress(RedisError):
                await client.aclose()

    async def pass_time(self, seconds: float) -> None:
        """Bring the end of every key nearer, as if time had passed."""
        async with self.client() as client:
            async for key in client.scan_iter():
                left_ms = await client.pttl(key)
                if left_ms >= 0:
                    await client.pexpire(key, max(0, left_ms - round(seconds * 1000)))


@asynccontextmanager
async def redis_server(directory: Path, *flags: str) -> AsyncIterator[RedisServer]:
    """A server that is gone at the end of the block."""
    server = RedisServer(directory, *flags)
    await server.start()
    try:
        yield server
    finally:
        await server.kill()
