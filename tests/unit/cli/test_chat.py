"""The conversation of `penstock chat`, against a scripted API."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from services.cli.chat import Answer, ApiError, Chat
from services.cli.errors import CliError

if TYPE_CHECKING:
    from collections.abc import Callable


def event(text: str) -> dict[str, Any]:
    return {"choices": [{"delta": {"content": text}}]}


def stream(*chunks: dict[str, Any]) -> httpx.Response:
    lines = "".join(f"id: 1\ndata: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    return httpx.Response(200, text=lines)


def talk(answer: Callable[[dict[str, Any]], httpx.Response]) -> tuple[Chat, list[dict[str, Any]]]:
    bodies: list[dict[str, Any]] = []

    def handle(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return answer(bodies[-1])

    client = httpx.Client(base_url="http://mesh", transport=httpx.MockTransport(handle))
    return Chat(client, "nano", {"max_tokens": 9}), bodies


def say(chat: Chat, text: str) -> str:
    return "".join(answer.piece for answer in chat.ask(text))


def test_the_conversation_is_sent_along() -> None:
    chat, bodies = talk(lambda body: stream(event("You said "), event(body["messages"][-1]["content"])))
    assert say(chat, "one") == "You said one"
    assert say(chat, "two") == "You said two"
    assert [message["content"] for message in bodies[1]["messages"]] == ["one", "You said one", "two"]
    assert (bodies[0]["model"], bodies[0]["max_tokens"], bodies[0]["stream"]) == ("nano", 9, True)


def test_a_refused_question_is_forgotten() -> None:
    refusals = iter([httpx.Response(429, json={"error": {"message": "full, come back"}}), stream(event("ok"))])
    chat, bodies = talk(lambda _: next(refusals))
    with pytest.raises(ApiError, match="full, come back"):
        say(chat, "one")
    assert say(chat, "two") == "ok"
    assert len(bodies[1]["messages"]) == 1


def test_the_oldest_exchange_goes_when_the_context_is_full() -> None:
    def answer(body: dict[str, Any]) -> httpx.Response:
        if len(body["messages"]) > 3:
            return httpx.Response(400, json={"error": {"message": "over the context length of 9 tokens"}})
        return stream(event("ok"))

    chat, bodies = talk(answer)
    assert [say(chat, text) for text in ("1", "2", "3")] == ["ok"] * 3
    assert [message["content"] for message in bodies[-1]["messages"]] == ["2", "ok", "3"]


def test_a_question_over_the_context_alone_is_an_error() -> None:
    chat, bodies = talk(lambda _: httpx.Response(400, json={"error": {"message": "over the context length"}}))
    with pytest.raises(ApiError):
        say(chat, "far too long")
    assert len(bodies) == 1


def test_an_error_in_the_middle_of_a_stream_is_one() -> None:
    chat, _ = talk(lambda _: stream(event("par"), {"error": {"message": "the worker died"}}))
    with pytest.raises(ApiError, match="the worker died"):
        say(chat, "hello")
    assert chat.messages == []


def test_a_lost_connection_is_an_error() -> None:
    def handle(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("gone", request=request)

    chat = Chat(httpx.Client(base_url="http://mesh", transport=httpx.MockTransport(handle)), "nano", {})
    with pytest.raises(CliError, match="broke"):
        say(chat, "hello")


def test_figures() -> None:
    answer = Answer(asked_at=10.0)
    assert answer.figures() == "no text"
    answer.add({"choices": [{"delta": {"role": "assistant"}}]}, 10.1)
    answer.add(event("a"), 10.25)
    answer.add(event("b"), 11.25)
    answer.add({"choices": [], "usage": {"completion_tokens": 11}}, 11.3)
    assert answer.figures() == "TTFT 250 ms, 10 tokens/s, 11 tokens"
