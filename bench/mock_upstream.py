"""A cheap upstream that streams the same SSE chunks as the gateway: what Envoy proxies in `bench.token`.

`python -m bench.mock_upstream PORT STEP_MS TOKENS`. Every POST gets TOKENS chunks, one per step of one of two engines.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop

HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nCache-Control: no-cache\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
DATA = (
    b'data: {"id":"chatcmpl-3a0e981e2c80ec8adde3b91e","object":"chat.completion.chunk","created":1795228427,'
    b'"model":"nano","system_fingerprint":"5ab91548e611913e04ff184047557a27","choices":[{"index":0,"delta":'
    b'{"content":" token"},"logprobs":null,"finish_reason":null}]}\n\n'
)


def chunk(body: bytes) -> bytes:
    """`body` as one chunk of a chunked answer."""
    return b"%x\r\n%b\r\n" % (len(body), body)


class _Stream(asyncio.Protocol):
    """One connection: a request, then its chunks, then the next request."""

    def __init__(self, engines: list[set[_Stream]], tokens: int) -> None:
        self._engines, self._tokens = engines, tokens
        self._buffer = b""
        self._sent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = next(
            int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")
        )
        if len(body) < length:
            return
        self._buffer, self._sent = body[length:], 0
        self._transport.write(HEAD)
        min(self._engines, key=len).add(self)

    def step(self) -> bool:
        """Write one token; False after the last."""
        if self._transport.is_closing():
            return False
        self._transport.write(chunk(b"id: %d\n" % self._sent + DATA))
        self._sent += 1
        if self._sent < self._tokens:
            return True
        self._transport.write(chunk(b"data: [DONE]\n\n") + b"0\r\n\r\n")
        return False


async def _engine(streams: set[_Stream], step_s: float, offset_s: float) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time() + offset_s
    while True:
        due += step_s
        await asyncio.sleep(due - loop.time())
        for stream in [stream for stream in streams if not stream.step()]:
            streams.discard(stream)


async def _main(port: int, step_ms: float, tokens: int) -> None:
    engines: list[set[_Stream]] = [set(), set()]
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Stream(engines, tokens), "127.0.0.1", port, backlog=1024)
    async with server, asyncio.TaskGroup() as tasks:
        for number, streams in enumerate(engines):
            tasks.create_task(_engine(streams, step_ms / 1000, number * step_ms / 2000))


if __name__ == "__main__":
    uvloop.run(_main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])))
