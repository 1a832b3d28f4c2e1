"""Server-sent events of one response, written straight from the frame callback to the socket.

Why not `await response.write(...)`: at thousands of tokens per second the task switch per token costs as much as all
the rest (docs/benchmarks.md). So aiohttp parses requests and keeps connections, and a delta goes to its transport
directly. Nothing here waits: when the client does not keep up, deltas are merged, one per choice, until it does.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, Protocol

from services.common.errors import CancelledError_
from services.gateway.generation.held import Held

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

    from services.gateway.generation.choice import Extra
    from services.gateway.mesh.workers import Logprobs

BUFFER_BYTES_HIGH = 64 * 1024
"""Unsent bytes of one client above which its deltas are merged."""


class Chunks(Protocol):
    """The JSON objects of one response; see services/gateway/http/format.py."""

    def role(self, choice: int) -> bytes | None: ...

    def text(self, choice: int, text: str) -> bytes: ...

    def rich(self, choice: int, text: str, tool_calls: list[dict[str, Any]], logprobs: Logprobs) -> bytes: ...

    def finish(self, choice: int, reason: str) -> bytes: ...


def event(payload: bytes) -> bytes:
    """One SSE event without an id (HTML Living Standard, 9.2)."""
    return b"data: %b\n\n" % payload


class SseStream:
    """A `Listener` that writes to one client.

    Before `open` and while the client is behind, events are held and merged. `wake` is set when the request's handler
    has something to do: open, wait for the client, or finish.
    """

    def __init__(self, chunks: Chunks, choices: int) -> None:
        self.wake = asyncio.Event()
        self.blocked = False
        self.first_event_at: float | None = None
        self._chunks = chunks
        self._writer: AbstractStreamWriter | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._chunked = True
        self._last = [-1] * choices
        self._held = Held()

    @property
    def started(self) -> bool:
        """Something is there to be sent."""
        return self.first_event_at is not None

    @property
    def error(self) -> CancelledError_ | None:
        """Set when the client left too much unread."""
        return self._held.error

    def open(self, writer: AbstractStreamWriter, transport: asyncio.WriteTransport, *, chunked: bool) -> None:
        """Headers and roles are out: from now on deltas go to `transport`."""
        self._writer, self._transport, self._chunked = writer, transport, chunked
        self._flush()

    def on_delta(self, choice: int, text: str, last_index: int, extra: Extra | None) -> None:
        """See `Listener`."""
        if self._transport is None or self.blocked:
            self._held.delta(choice, text, last_index, extra)
            self._note()
            return
        if extra is None:
            payload = self._chunks.text(choice, text)
        else:
            payload = self._chunks.rich(choice, text, extra.tool_calls, extra.logprobs)
        self._write(payload, choice, last_index)

    def on_end(self, choice: int, reason: str, tokens: int) -> None:
        """See `Listener`."""
        if self._transport is None or self.blocked:
            self._held.end(choice, reason, tokens)
            self._note()
        else:
            self._write(self._chunks.finish(choice, reason), choice, tokens)

    def _note(self) -> None:
        if self.first_event_at is None:
            self.first_event_at = time.monotonic()
            self.wake.set()
        elif self._held.error is not None:
            self.wake.set()

    def _write(self, payload: bytes, choice: int, ident: int) -> None:
        last = self._last
        last[choice] = ident
        name = str(ident) if len(last) == 1 else ",".join(map(str, last))
        body = b"id: %b\ndata: %b\n\n" % (name.encode(), payload)
        transport = self._transport
        if transport is None or transport.is_closing():
            return  # the handler is being cancelled
        transport.write(b"%x\r\n%b\r\n" % (len(body), body) if self._chunked else body)
        if transport.get_write_buffer_size() > BUFFER_BYTES_HIGH:
            self.blocked = True
            self.wake.set()

    def _flush(self) -> None:
        for choice, held in self._held.take():
            if held.has_delta:
                self.on_delta(choice, held.text, held.last_index, held.extra)
            if held.end is not None:
                self.on_end(choice, *held.end)

    async def drain(self, patience_s: float) -> None:
        """Wait until a client that is behind has caught up, then send it what was merged meanwhile.

        Raises:
            CancelledError_: it took nothing for `patience_s` seconds.
        """
        if self._writer is None or self._transport is None:
            return
        while self.blocked:
            # One task for the whole wait: aiohttp keeps a single waiter per connection, and cancelling it at each
            # time-out would end the handler at the next.
            drained = asyncio.ensure_future(self._writer.drain())
            try:
                await self._until(drained, patience_s)
            finally:
                drained.cancel()
            self.blocked = False
        self._flush()

    async def _until(self, drained: asyncio.Future[None], patience_s: float) -> None:
        """Wait for `drained` as long as the client takes something in each `patience_s` seconds."""
        while not drained.done():
            before = self._unsent()
            await asyncio.wait({drained}, timeout=patience_s)
            if not drained.done() and self._unsent() >= before:
                raise CancelledError_(f"the client took nothing for {patience_s:g} s")
        drained.result()

    def _unsent(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0
