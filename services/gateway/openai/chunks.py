"""Streamed chunks, as JSON objects in bytes; the SSE writer adds the framing.

Hot path: `text()` is a precomputed prefix and suffix around one JSON string.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import orjson


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of a response: its prompt (once), all its choices, and how much of the prompt came from the cache."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0

    def body(self) -> dict[str, Any]:
        """OpenAI's `usage` object."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class _Chunks:
    """What the two kinds of chunks share. `_head` ends before the value of `choices`."""

    _object = ""
    _text_end = b""
    """What follows the text in a chunk of text alone."""

    def __init__(
        self,
        response_id: str,
        model: str,
        created: int,
        *,
        include_usage: bool,
        fingerprint: str | None = None,
        service_tier: str | None = None,
    ) -> None:
        head: dict[str, Any] = {
            "id": response_id,
            "object": self._object,
            "created": created,
            "model": model,
            "system_fingerprint": fingerprint,
        }
        if service_tier is not None:
            head["service_tier"] = service_tier
        self._head = orjson.dumps(head)[:-1]
        self._tail = b',"usage":null}' if include_usage else b"}"
        self._text_tail = self._text_end + self._tail
        self._text_heads: dict[int, bytes] = {}

    def _chunk(self, choice: dict[str, Any]) -> bytes:
        return b"".join((self._head, b',"choices":[', orjson.dumps(choice), b"]", self._tail))

    def usage(self, usage: Usage) -> bytes:
        """The last chunk, without choices."""
        return b"".join((self._head, b',"choices":[],"usage":', orjson.dumps(usage.body()), b"}"))


class ChatChunks(_Chunks):
    """The chunks of one streamed chat completion.

    Args:
        created: seconds since the epoch.
        include_usage: every chunk carries `"usage": null`, as OpenAI's do when usage is asked for.
        fingerprint: `system_fingerprint`, the model's version.
        service_tier: echoed when the request named one.
    """

    _object = "chat.completion.chunk"
    _text_end = b'},"logprobs":null,"finish_reason":null}]'

    def role(self, choice: int) -> bytes:
        """The first chunk of a choice."""
        return self.delta(choice, {"role": "assistant", "content": ""})

    def text(self, choice: int, text: str) -> bytes:
        """A piece of content."""
        try:
            head = self._text_heads[choice]
        except KeyError:
            head = self._head + b',"choices":[{"index":%d,"delta":{"content":' % choice
            self._text_heads[choice] = head
        return head + orjson.dumps(text) + self._text_tail

    def delta(self, choice: int, delta: dict[str, Any], logprobs: dict[str, Any] | None = None) -> bytes:
        """Any delta: tool calls, or content with its logprobs."""
        return self._chunk({"index": choice, "delta": delta, "logprobs": logprobs, "finish_reason": None})

    def finish(self, choice: int, reason: str) -> bytes:
        """The end of a choice: `stop`, `length` or `tool_calls`."""
        return self._chunk({"index": choice, "delta": {}, "logprobs": None, "finish_reason": reason})


class CompletionChunks(_Chunks):
    """The chunks of one streamed text completion; arguments as for `ChatChunks`."""

    _object = "text_completion"
    _text_end = b',"logprobs":null,"finish_reason":null}]'

    def role(self, choice: int) -> bytes | None:
        """Text completions begin without a role."""
        return None

    def text(self, choice: int, text: str) -> bytes:
        """A piece of text."""
        try:
            head = self._text_heads[choice]
        except KeyError:
            head = self._head + b',"choices":[{"index":%d,"text":' % choice
            self._text_heads[choice] = head
        return head + orjson.dumps(text) + self._text_tail

    def delta(self, choice: int, text: str, logprobs: dict[str, Any] | None = None) -> bytes:
        """A piece of text with its logprobs."""
        return self._chunk({"index": choice, "text": text, "logprobs": logprobs, "finish_reason": None})

    def finish(self, choice: int, reason: str) -> bytes:
        """The end of a choice: `stop` or `length`."""
        return self._chunk({"index": choice, "text": "", "logprobs": None, "finish_reason": reason})
