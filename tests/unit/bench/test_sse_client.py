"""The clients of the benchmarks: a wrong count there would be a wrong figure everywhere."""

from __future__ import annotations

import asyncio
import json

import pytest

from bench.mock_upstream import DATA, HEAD, chunk
from bench.sse_client import Counter, KeptClient, SseClient, request_bytes

ANSWER = HEAD + b"".join(chunk(b"id: %d\n" % index + DATA) for index in range(3)) + chunk(b"data: [DONE]\n\n")
LAST = b"0\r\n\r\n"


class Wire(asyncio.Transport):
    """Records what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = b""
        self.closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed


def test_the_request_is_one_that_runs_to_its_last_token() -> None:
    head, _, body = request_bytes(80, "key", tokens=7, temperature=0).partition(b"\r\n\r\n")
    assert f"Content-Length: {len(body)}".encode() in head
    assert b"Authorization: Bearer key" in head
    asked = json.loads(body)
    assert (asked["max_tokens"], asked["ignore_eos"], asked["stream"], asked["temperature"]) == (7, True, True, 0)


async def test_tokens_of_many_streams_are_counted() -> None:
    counter = Counter(streams=2)
    clients = [SseClient(b"request", counter) for _ in range(2)]
    wires = [Wire(), Wire()]
    for client, wire in zip(clients, wires, strict=True):
        client.connection_made(wire)
    clients[0].data_received(ANSWER)
    assert (counter.tokens, counter.begun, counter.ended) == (3, 1, 1)
    assert not counter.all_begun.is_set()
    clients[1].data_received(HEAD + chunk(b"data: role\n\n"))
    assert not counter.all_begun.is_set()
    clients[1].data_received(chunk(b"id: 0\n" + DATA))
    assert counter.all_begun.is_set()
    assert counter.tokens == 4
    assert wires[0].sent == b"request"
    assert clients[0].done.done()
    clients[1].connection_lost(None)
    with pytest.raises(ConnectionError, match="after 1 tokens"):
        await clients[1].done


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_kept_connection_knows_where_an_answer_ends(size: int) -> None:
    client = KeptClient()
    client.connection_made(Wire())
    for _ in range(2):
        first, done = client.send(b"request")
        for at in range(0, len(ANSWER), size):
            client.data_received(ANSWER[at : at + size])
        assert await first >= 0
        assert not done.done()
        client.data_received(LAST)
        await done
    assert client.open


async def test_an_answer_with_a_length_has_no_first_token() -> None:
    client = KeptClient()
    client.connection_made(Wire())
    first, done = client.send(b"request")
    client.data_received(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
    assert not done.done()
    client.data_received(b"cd")
    await done
    assert first.cancelled()


async def test_refusals_and_losses_are_errors() -> None:
    client = KeptClient()
    client.connection_made(Wire())
    _, done = client.send(b"request")
    client.data_received(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 3\r\n\r\nwhy")
    with pytest.raises(ConnectionError, match="why"):
        await done
    first, done = client.send(b"request")
    client.close()
    client.connection_lost(None)
    assert not client.open
    assert first.cancelled()
    with pytest.raises(ConnectionError, match="lost"):
        await done
