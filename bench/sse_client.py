"""Real HTTP clients that read SSE, as cheap as they can be: one connection per stream, events counted."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field
from typing import cast


def request_bytes(port: int, key: str, *, tokens: int, prompt: str = "Hello there", stream: bool = True) -> bytes:
    """One POST /v1/chat/completions that runs to exactly `tokens` tokens."""
    body = json.dumps(
        {
            "model": "nano", "messages": [{"role": "user", "content": prompt}], "stream": stream,
            "max_tokens": tokens, "ignore_eos": True,
        }
    ).encode()  # fmt: skip
    head = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@dataclass
class Counter:
    """Tokens of all streams together."""

    streams: int
    tokens: int = 0
    begun: int = 0
    ended: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class SseClient(asyncio.Protocol):
    """Sends one request and counts `id:` lines until `[DONE]`."""

    def __init__(self, request: bytes, counter: Counter) -> None:
        self._request, self._counter = request, counter
        self.sent_at = 0.0
        self.first_token_at: float | None = None
        self.tokens = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class
        self.sent_at = time.monotonic()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        fresh = data.count(b"\nid: ")
        if fresh:
            if self.first_token_at is None:
                self.first_token_at = time.monotonic()
                self._counter.begun += 1
                if self._counter.begun == self._counter.streams:
                    self._counter.changed.set()
            self.tokens += fresh
            self._counter.tokens += fresh
        if b"[DONE]" in data:
            self._counter.ended += 1
            self._counter.changed.set()
            self._transport.close()
            if not self.done.done():
                self.done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(ConnectionError(f"the stream ended after {self.tokens} tokens: {error}"))
