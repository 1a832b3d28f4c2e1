"""Tool calls: what a model writes as text, and OpenAI's `tool_calls` deltas.

The format is that of Hermes 2 (Qwen, nano and others follow it):
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of times, beside plain text. What does not parse
as a call is plain content, never lost. Concatenated, the deltas are a pure function of the text, however it was split;
so are the ids of the calls.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from services.gateway.text.callscan import CallScanner
from services.gateway.text.forced import forced_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ForcedToolParser", "ToolCallParser", "ToolDeltas", "calls_in_message", "forced_schema"]

OPEN = "<tool_call>"
CLOSE = "</tool_call>"


@dataclass(slots=True)
class ToolDeltas:
    """What one piece of text became: content to emit, then entries of `delta.tool_calls`."""

    content: str = ""
    tool_calls: list[dict[str, Any]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.content or self.tool_calls)


class _Calls:
    """Numbers the calls of one choice and builds their deltas."""

    __slots__ = ("_seed", "count")

    def __init__(self, seed: str) -> None:
        self._seed = seed
        self.count = 0

    def begin(self, name: str, arguments: str) -> dict[str, Any]:
        digest = hashlib.blake2b(f"{self._seed}/{self.count}".encode(), digest_size=12, person=b"penstock-call")
        delta = {
            "index": self.count,
            "id": f"call_{digest.hexdigest()}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }
        self.count += 1
        return delta

    def more(self, arguments: str) -> dict[str, Any]:
        return {"index": self.count - 1, "function": {"arguments": arguments}}

    def advance(self, scanner: CallScanner, begun: bool) -> list[dict[str, Any]]:
        """Deltas for what `scanner` has read; `begun` = it had begun before."""
        if not scanner.begun:
            return []
        arguments = scanner.take()
        if not begun:
            return [self.begin(scanner.name or "", arguments)]
        return [self.more(arguments)] if arguments else []


class ToolCallParser:
    """Splits the text of one choice into content and calls, as it comes.

    Args:
        seed: makes the ids of the calls; unique per choice, e.g. `f"{response_id}/{choice}"`.
        parallel: False drops everything after the first call (`parallel_tool_calls: false`).
    """

    __slots__ = ("_blank", "_calls", "_closing", "_held", "_parallel", "_raw", "_scanner")

    def __init__(self, seed: str, *, parallel: bool = True) -> None:
        self._calls = _Calls(seed)
        self._parallel = parallel
        self._scanner: CallScanner | None = None
        """Set inside a call."""
        self._raw = ""
        """All of the call so far, while it may still turn out to be plain content."""
        self._closing = False
        """The call is read; its closing tag is awaited."""
        self._held = ""
        """Content mode: the start of a tag, perhaps. Closing: the start of the closing tag."""
        self._blank: str | None = ""
        """White space at the start or after a call: content only if content follows. None inside content."""

    @property
    def made_calls(self) -> bool:
        """At least one call has begun: the finish reason is `tool_calls` where it would be `stop`."""
        return self._calls.count > 0

    def feed(self, text: str) -> ToolDeltas:
        """What `text` makes certain."""
        out = ToolDeltas()
        while text:
            if self._closing:
                text = self._close(text)
            elif self._scanner is not None:
                text = self._scan(self._scanner, text, out)
            elif self._calls.count and not self._parallel:
                return out
            else:
                text = self._read_content(text, out)
        return out

    def finish(self) -> ToolDeltas:
        """At the end: what was held back. A call that never began is content."""
        out = ToolDeltas()
        if self._scanner is not None and not self._scanner.begun:
            self._content(OPEN + self._raw, out)
        elif self._scanner is None and not self._closing:
            self._content(self._held, out)
            if self._blank and not self._calls.count:
                out.content += self._blank
        self._scanner, self._closing, self._held, self._raw = None, False, "", ""
        return out

    def _read_content(self, text: str, out: ToolDeltas) -> str:
        text = self._held + text
        self._held = ""
        at = text.find(OPEN)
        if at >= 0:
            self._content(text[:at], out)
            self._scanner, self._raw = CallScanner(), ""
            return text[at + len(OPEN) :]
        safe = len(text) - _tail_in_common(text, OPEN)
        self._held = text[safe:]
        self._content(text[:safe], out)
        return ""

    def _content(self, text: str, out: ToolDeltas) -> None:
        if self._blank is not None:
            text = self._blank + text
            if not text or text.isspace():
                self._blank = text
                return
            self._blank = None
        out.content += text

    def _scan(self, scanner: CallScanner, text: str, out: ToolDeltas) -> str:
        begun = scanner.begun
        used = scanner.feed(text)
        if not scanner.begun:
            self._raw += text[:used]
        out.tool_calls += self._calls.advance(scanner, begun)
        if scanner.begun:
            self._blank = ""
        if scanner.broken and not scanner.begun:
            self._scanner = None
            self._content(OPEN + self._raw, out)
            return text[used:]
        if scanner.broken or scanner.done:
            self._scanner, self._closing = None, True
        return text[used:]

    def _close(self, text: str) -> str:
        """Skip white space and the closing tag; anything else is content again."""
        text = (self._held + text).lstrip()
        self._held = ""
        if text.startswith(CLOSE):
            self._closing = False
            return text[len(CLOSE) :]
        if CLOSE.startswith(text):
            self._held = text
            return ""
        self._closing = False
        return text


def _tail_in_common(text: str, tag: str) -> int:
    """Length of the longest end of `text` that `tag` starts with, short of all of it."""
    return next((n for n in range(min(len(tag) - 1, len(text)), 0, -1) if text.endswith(tag[:n])), 0)


class ForcedToolParser:
    """Turns the JSON of a structured output (`forced_schema`) into one call.

    Args:
        seed: as for `ToolCallParser`.
        name: the function that `tool_choice` names, the text being its arguments; None for `required`, the text
            being `{"name": ..., "arguments": {...}}`.
    """

    __slots__ = ("_calls", "_name", "_raw", "_scanner")

    def __init__(self, seed: str, *, name: str | None) -> None:
        self._calls = _Calls(seed)
        self._name = name
        self._scanner = CallScanner()
        self._raw = ""

    @property
    def made_calls(self) -> bool:
        """The call has begun."""
        return self._calls.count > 0

    def feed(self, text: str) -> ToolDeltas:
        """What `text` makes certain."""
        if not text:
            return ToolDeltas()
        if self._name is not None:
            return ToolDeltas(
                tool_calls=[self._calls.more(text) if self.made_calls else self._calls.begin(self._name, text)]
            )
        begun = self._scanner.begun
        if not begun:
            self._raw += text
        if not self._scanner.broken:
            self._scanner.feed(text)
        return ToolDeltas(tool_calls=self._calls.advance(self._scanner, begun))

    def finish(self) -> ToolDeltas:
        """At the end: text that never became a call, as content."""
        return ToolDeltas() if self.made_calls else ToolDeltas(content=self._raw)


def calls_in_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message for a chat template: the arguments of its calls as objects, where they are JSON objects."""
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    return {**message, "tool_calls": [_with_object(call) for call in calls]}


def _with_object(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    if not isinstance(function["arguments"], str):
        return dict(call)
    try:
        arguments = json.loads(function["arguments"])
    except ValueError:
        return dict(call)
    if not isinstance(arguments, dict):
        return dict(call)
    return {**call, "function": {**function, "arguments": arguments}}
