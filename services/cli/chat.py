"""`penstock chat`: a conversation in the terminal over the OpenAI API of the running mesh."""

from __future__ import annotations

import json
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import httpx
from rich.console import Console

from services.cli.errors import CliError
from services.cli.state import StateDir
from services.cli.status import running_mesh

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from pathlib import Path

ANSWER_S_MAX = 600.0
"""Between two chunks of an answer."""
TOO_LONG_STATUS = 400
EXITS = {"/exit", "/quit"}
HELP = "/exit ends, /new starts a new conversation, Ctrl-C stops an answer."


@dataclass(slots=True)
class Answer:
    """One answer as it comes in."""

    asked_at: float
    text: str = ""
    piece: str = ""
    """What the last chunk added to the text."""
    first_at: float | None = None
    last_at: float | None = None
    tokens: int | None = None

    def add(self, chunk: dict[str, Any], now: float) -> None:
        """Take a chunk of the stream."""
        usage = chunk.get("usage")
        if usage:
            self.tokens = usage["completion_tokens"]
        self.piece = "".join(choice["delta"].get("content") or "" for choice in chunk.get("choices", ()))
        if self.piece:
            self.first_at = self.first_at if self.first_at is not None else now
            self.last_at = now
            self.text += self.piece

    def figures(self) -> str:
        """TTFT and speed, as far as they are known."""
        if self.first_at is None or self.last_at is None:
            return "no text"
        parts = [f"TTFT {(self.first_at - self.asked_at) * 1000:.0f} ms"]
        spent_s = self.last_at - self.first_at
        if self.tokens is not None:
            if self.tokens > 1 and spent_s > 0:
                parts.append(f"{(self.tokens - 1) / spent_s:.0f} tokens/s")
            parts.append(f"{self.tokens} tokens")
        return ", ".join(parts)


class ApiError(Exception):
    """The mesh refused; `status` is HTTP's."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(slots=True)
class Chat:
    """A conversation with one model.

    Args:
        client: has the base URL and the key.
        parameters: of every request, e.g. max_tokens.
    """

    client: httpx.Client
    model: str
    parameters: dict[str, Any]
    messages: list[dict[str, str]] = field(default_factory=list)

    def ask(self, text: str) -> Iterator[Answer]:
        """Send `text` after what was said before; yields the answer as it grows.

        The oldest exchanges are dropped when the conversation has outgrown the model's context.

        Raises:
            ApiError: refused.
            CliError: no connection, or an answer that is no stream.
        """
        self.messages.append({"role": "user", "content": text})
        try:
            answer = yield from self._stream()
        except BaseException:
            self.messages.pop()
            raise
        self.messages.append({"role": "assistant", "content": answer.text})

    def _stream(self) -> Generator[Answer, None, Answer]:
        while True:
            try:
                return (yield from self._request())
            except ApiError as error:
                droppable = len(self.messages) > 2 and error.status == TOO_LONG_STATUS and "context" in str(error)
                if not droppable:
                    raise
                del self.messages[:2]

    def _request(self) -> Generator[Answer, None, Answer]:
        body = {
            "model": self.model, "messages": self.messages, "stream": True,
            "stream_options": {"include_usage": True}, **self.parameters,
        }  # fmt: skip
        answer = Answer(asked_at=time.monotonic())
        try:
            with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != httpx.codes.OK:
                    response.read()
                    raise ApiError(response.status_code, _error_text(response.text, response.status_code))
                for chunk in _events(response.iter_lines()):
                    answer.add(chunk, time.monotonic())
                    yield answer
        except httpx.HTTPError as error:
            raise CliError(f"the connection to {self.client.base_url} broke: {error}") from error
        return answer


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The data of a stream of server-sent events, up to [DONE]."""
    for line in lines:
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            return
        chunk = json.loads(data)
        if "error" in chunk:
            raise ApiError(0, str(chunk["error"].get("message", chunk["error"])))
        yield chunk


def _error_text(body: str, status: int) -> str:
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}: {body[:200]}"


def chat(state_dir: Path, text: str | None, *, model: str | None, parameters: dict[str, Any]) -> int:
    """Talk until /exit or the end of input, or ask one question; the exit status.

    Raises:
        CliError: nothing runs, or the one question failed.
    """
    state = StateDir(state_dir)
    mesh = running_mesh(state)
    console = Console(highlight=False, soft_wrap=True)
    headers = {"Authorization": f"Bearer {state.api_key() or ''}"}
    with httpx.Client(base_url=mesh.base_url, headers=headers, timeout=ANSWER_S_MAX, trust_env=False) as client:
        talk = Chat(client, model or mesh.model, parameters)
        if text is not None:
            try:
                _show(talk, text, console)
            except ApiError as error:
                raise CliError(str(error)) from error
            return 0
        console.print(f"Talking to [bold]{talk.model}[/] at {mesh.base_url}. {HELP}")
        return _converse(talk, console)


def _converse(talk: Chat, console: Console) -> int:
    while True:
        try:
            text = console.input("\n[bold]you>[/] " if sys.stdin.isatty() else "").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return 0
        if text in EXITS:
            return 0
        if text == "/new":
            talk.messages.clear()
            console.print("[dim]a new conversation[/]")
        elif text.startswith("/"):
            console.print(f"there is no {text}. {HELP}", markup=False)
        elif text:
            try:
                _show(talk, text, console)
            except KeyboardInterrupt:
                console.print("\n[dim]stopped[/]")
            except (ApiError, CliError) as error:
                console.print(f"error: {error}", style="red", markup=False)


def _show(talk: Chat, text: str, console: Console) -> None:
    answer: Answer | None = None
    for answer in talk.ask(text):
        console.out(answer.piece, end="", highlight=False)
        sys.stdout.flush()
    console.print(f"\n[dim]{answer.figures() if answer else 'no answer'}[/]")
