"""Server-sent events of one response: ids, order, and what a client that doesn't read does to them."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import CancelledError_
from services.gateway.generation.choice import Extra
from services.gateway.generation.held import HELD_CHARS_MAX
from services.gateway.http.sse import BUFFER_BYTES_HIGH, SseStream, event

if TYPE_CHECKING:
    from aiohttp.abc import AbstractStreamWriter

    from services.gateway.mesh.workers import Logprobs


class FakeChunks:
    """Says what it was asked for."""

    def role(self, choice: int) -> bytes | None:
        return None

    def text(self, choice: int, text: str) -> bytes:
        return json.dumps({"choice": choice, "text": text}).encode()

    def rich(self, choice: int, text: str, tool_calls: list[dict[str, Any]], logprobs: Logprobs) -> bytes:
        return json.dumps({"choice": choice, "text": text, "calls": tool_calls, "logprobs": logprobs}).encode()

    def finish(self, choice: int, reason: str) -> bytes:
        return json.dumps({"choice": choice, "finish": reason}).encode()


class FakeSocket:
    """Transport and writer in one: what is written stays in the buffer until `read`."""

    def __init__(self) -> None:
        self.unsent = b""
        self.seen = b""
        self.closing = False
        self._drained = asyncio.Event()

    def write(self, data: bytes) -> None:
        self.unsent += data

    def get_write_buffer_size(self) -> int:
        return len(self.unsent)

    def is_closing(self) -> bool:
        return self.closing

    def read(self, size: int | None = None) -> None:
        """The client takes `size` bytes, or all."""
        size = len(self.unsent) if size is None else size
        self.seen, self.unsent = self.seen + self.unsent[:size], self.unsent[size:]
        if not self.unsent:
            self._drained.set()

    async def drain(self) -> None:
        if self.unsent:
            self._drained.clear()
            await self._drained.wait()

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """(id, data) of all that was written without chunks."""
        found = []
        for block in (self.seen + self.unsent).decode().split("\n\n")[:-1]:
            ident, data = block.split("\n")
            found.append((ident.removeprefix("id: "), json.loads(data.removeprefix("data: "))))
        return found


def opened(choices: int = 1, *, chunked: bool = False) -> tuple[SseStream, FakeSocket]:
    stream, socket = SseStream(FakeChunks(), choices), FakeSocket()
    open_on(stream, socket, chunked=chunked)
    return stream, socket


def open_on(stream: SseStream, socket: FakeSocket, *, chunked: bool = False) -> None:
    stream.open(cast("AbstractStreamWriter", socket), cast("asyncio.WriteTransport", socket), chunked=chunked)


def test_ids_are_the_last_consumed_index_and_the_token_count_at_the_end() -> None:
    stream, socket = opened()
    stream.on_delta(0, "a", 0, None)
    stream.on_delta(0, "bc", 2, None)
    stream.on_end(0, "stop", 4)
    assert socket.events() == [
        ("0", {"choice": 0, "text": "a"}), ("2", {"choice": 0, "text": "bc"}), ("4", {"choice": 0, "finish": "stop"}),
    ]  # fmt: skip


def test_the_id_of_several_choices_is_a_vector() -> None:
    stream, socket = opened(2)
    stream.on_delta(1, "x", 0, None)
    stream.on_delta(0, "a", 5, None)
    stream.on_delta(1, "y", 7, None)
    stream.on_end(0, "length", 6)
    assert [ident for ident, _ in socket.events()] == ["-1,0", "5,0", "5,7", "6,7"]


def test_chunks_are_framed_for_http_1_1() -> None:
    stream, socket = opened(chunked=True)
    stream.on_delta(0, "é", 0, None)
    body = b'id: 0\ndata: {"choice": 0, "text": "\\u00e9"}\n\n'
    assert socket.unsent == b"%x\r\n" % len(body) + body + b"\r\n"


def test_what_comes_with_the_text_goes_with_it() -> None:
    stream, socket = opened()
    stream.on_delta(0, "a", 0, Extra([(1, -0.5, [])], [{"index": 0}]))
    assert socket.events()[0][1] == {
        "choice": 0, "text": "a", "calls": [{"index": 0}], "logprobs": [[1, -0.5, []]],
    }  # fmt: skip


def test_what_comes_before_the_headers_leaves_with_them_merged() -> None:
    stream, socket = SseStream(FakeChunks(), 1), FakeSocket()
    assert not stream.started
    stream.on_delta(0, "a", 0, None)
    assert stream.started
    assert stream.wake.is_set()
    stream.on_delta(0, "b", 1, None)
    stream.on_end(0, "stop", 2)
    open_on(stream, socket)
    assert socket.events() == [("1", {"choice": 0, "text": "ab"}), ("2", {"choice": 0, "finish": "stop"})]


def fill(stream: SseStream) -> int:
    """Deltas until the client counts as behind; how many."""
    index = 0
    while not stream.blocked:
        stream.on_delta(0, "x" * 1000, index, None)
        index += 1
    return index


async def test_a_client_that_does_not_read_gets_merged_deltas_when_it_reads_again() -> None:
    stream, socket = opened()
    first = fill(stream)
    assert stream.wake.is_set()
    unsent = len(socket.unsent)
    for index in range(first, first + 500):
        stream.on_delta(0, "y", index, None)
    stream.on_end(0, "stop", first + 500)
    assert len(socket.unsent) == unsent <= BUFFER_BYTES_HIGH + 2000
    drain = asyncio.ensure_future(stream.drain(30.0))
    await asyncio.sleep(0)
    assert not drain.done()
    socket.read()
    await drain
    assert not stream.blocked
    assert socket.events()[first:] == [
        (str(first + 499), {"choice": 0, "text": "y" * 500}), (str(first + 500), {"choice": 0, "finish": "stop"}),
    ]  # fmt: skip


@given(
    st.lists(st.tuples(st.integers(0, 2), st.text("ab", max_size=4)), max_size=40),
    st.lists(st.integers(0, 40), max_size=6),
)
def test_blocking_and_reading_anywhere_changes_no_choices_text(
    deltas: list[tuple[int, str]], blocks: list[int]
) -> None:
    async def scene() -> None:
        stream, socket = opened(3)
        for index, (choice, text) in enumerate(deltas):
            if index in blocks:
                stream.blocked = not stream.blocked
                if not stream.blocked:
                    stream.blocked = True
                    socket.read()
                    await stream.drain(30.0)
            stream.on_delta(choice, text, index, None)
        for choice in range(3):
            stream.on_end(choice, "stop", 9)
        socket.read()
        await stream.drain(30.0)
        events = socket.events()
        for choice in range(3):
            mine = [data for _, data in events if data["choice"] == choice]
            assert "".join(data.get("text", "") for data in mine) == "".join(t for c, t in deltas if c == choice)
            assert [index for index, data in enumerate(mine) if "finish" in data] == [len(mine) - 1]

    asyncio.run(scene())


async def test_a_client_that_takes_nothing_is_given_up() -> None:
    stream, _ = opened()
    fill(stream)
    with pytest.raises(CancelledError_, match="took nothing for"):
        await stream.drain(0.01)


async def test_a_client_that_takes_a_little_is_waited_for() -> None:
    stream, socket = opened()
    fill(stream)
    looks = 0

    def size() -> int:
        nonlocal looks
        looks += 1
        socket.read(1 if looks < 8 else None)
        return len(socket.unsent)

    socket.get_write_buffer_size = size  # type: ignore[method-assign]
    await stream.drain(0.001)
    assert not stream.blocked
    assert looks >= 8


async def test_waiting_for_a_client_does_not_disturb_the_wait_of_its_connection() -> None:
    stream, socket = opened()
    fill(stream)
    waits = 0

    async def drain() -> None:
        nonlocal waits
        waits += 1
        try:
            await FakeSocket.drain(socket)
        except asyncio.CancelledError:
            waits += 100
            raise

    socket.drain = drain  # type: ignore[method-assign]
    waiting = asyncio.ensure_future(stream.drain(30.0))
    await asyncio.sleep(0)
    socket.read()
    await waiting
    assert waits == 1


def test_what_is_held_for_a_client_is_bounded() -> None:
    stream, socket = opened()
    fill(stream)
    unsent = len(socket.unsent)
    stream.on_delta(0, "x", 1, None)
    stream.wake.clear()
    stream.on_delta(0, "x" * (HELD_CHARS_MAX - 1), 1, None)
    assert (stream.error, stream.wake.is_set()) == (None, False)
    stream.on_delta(0, "x", 2, None)
    assert stream.error is not None
    assert stream.wake.is_set()
    assert len(socket.unsent) == unsent


def test_nothing_is_written_to_a_connection_that_closes() -> None:
    stream, socket = opened()
    socket.closing = True
    stream.on_delta(0, "a", 0, None)
    assert socket.unsent == b""


def test_an_event_without_an_id() -> None:
    assert event(b"[DONE]") == b"data: [DONE]\n\n"
