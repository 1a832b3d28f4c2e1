"""Real HTTP clients that read SSE, as cheap as they can be: a connection each, events counted."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import Any, cast

_LAST_CHUNK = b"\r\n0\r\n\r\n"


def request_bytes(port: int, key: str, *, tokens: int, prompt: str = "Hello there", **more: Any) -> bytes:
    """One POST /v1/chat/completions that streams exactly `tokens` tokens; `more` goes into its body."""
    body = {
        "model": "nano", "messages": [{"role": "user", "content": prompt}], "stream": True,
        "max_tokens": tokens, "ignore_eos": True, **more,
    }  # fmt: skip
    data = json.dumps(body).encode()
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


@dataclass
class Counter:
    """Tokens of all streams together."""

    streams: int
    tokens: int = 0
    begun: int = 0
    ended: int = 0
    all_begun: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self) -> None:
        """One more stream has its first token."""
        self.begun += 1
        if self.begun == self.streams:
            self.all_begun.set()


class SseClient(asyncio.Protocol):
    """Sends one request and counts `id:` lines until `[DONE]`."""

    def __init__(self, request: bytes, counter: Counter) -> None:
        self._request, self._counter = request, counter
        self.tokens = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        fresh = data.count(b"\nid: ")
        if fresh:
            if not self.tokens:
                self._counter.begin()
            self.tokens += fresh
            self._counter.tokens += fresh
        if b"[DONE]" in data:
            self._counter.ended += 1
            self._transport.close()
            if not self.done.done():
                self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"the stream ended after {self.tokens} tokens: {error}"))


class KeptClient(asyncio.Protocol):
    """One kept-alive connection, one request at a time, each answer chunked or with a length."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._answer = bytearray()
        self._sent_at = 0.0
        self._first: asyncio.Future[float] | None = None
        self._done: asyncio.Future[None] | None = None

    @property
    def open(self) -> bool:
        """It can take a request."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, request: bytes) -> tuple[asyncio.Future[float], asyncio.Future[None]]:
        """Send it; the future seconds until the first token (streams only), and the future end of the answer.

        Both raise ConnectionError when the connection is lost or the status isn't 200; the first is cancelled when the
        answer ends without a token.
        """
        loop = asyncio.get_running_loop()
        if self._transport is None:
            raise RuntimeError("not connected")
        self._answer.clear()
        self._first, self._done = loop.create_future(), loop.create_future()
        self._sent_at = time.perf_counter()
        self._transport.write(request)
        return self._first, self._done

    def close(self) -> None:
        """Hang up, even in the middle of an answer."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._first is None or self._done is None:
            return
        self._answer += data
        if not self._first.done() and b"\nid: " in self._answer:
            self._first.set_result(now - self._sent_at)
        if self._complete() and not self._done.done():
            self._first.cancel()
            if self._answer.startswith(b"HTTP/1.1 200 "):
                self._done.set_result(None)
            else:
                self._done.set_exception(ConnectionError(bytes(self._answer[:400]).decode(errors="replace")))

    def _complete(self) -> bool:
        head, found, body = self._answer.partition(b"\r\n\r\n")
        if not found:
            return False
        length = next((line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), None)
        if length is None:
            return body.endswith(_LAST_CHUNK)
        return len(body) >= int(length.split(b":")[1])

    def connection_lost(self, error: Exception | None) -> None:
        if self._first is not None and not self._first.done():
            self._first.cancel()
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"the connection was lost: {error}"))
