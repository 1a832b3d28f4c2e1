"""Reads one tool call, `{"name": ..., "arguments": {...}}`, and passes its arguments on as they come."""

from __future__ import annotations

import json
from enum import Enum, auto

_SPACE = " \t\r\n"


class _At(Enum):
    OPEN = auto()
    KEY_OR_END = auto()
    KEY = auto()
    COLON = auto()
    VALUE_START = auto()
    STRING = auto()
    NESTED = auto()
    SCALAR = auto()
    COMMA_OR_END = auto()
    DONE = auto()


class CallScanner:
    """One call. `begun` turns true when the name is known and the arguments start; from then on nothing is taken back.

    The contents of `arguments` are not validated, as with OpenAI: what the model wrote is what the client gets.
    """

    __slots__ = (
        "_at",
        "_depth",
        "_escaped",
        "_fresh",
        "_key",
        "_parts",
        "_quoted",
        "_streams",
        "begun",
        "broken",
        "name",
    )

    def __init__(self) -> None:
        self.name: str | None = None
        self.begun = False
        self.broken = False
        self._at = _At.OPEN
        self._key = ""
        self._parts: list[str] = []
        """Characters of the string or value being read."""
        self._fresh: list[str] = []
        """Arguments not yet taken."""
        self._streams = False
        """The value being read is an arguments object: its characters go straight to `_fresh`."""
        self._depth = 0
        self._quoted = False
        self._escaped = False

    @property
    def done(self) -> bool:
        """The closing brace has been read."""
        return self._at is _At.DONE

    def feed(self, text: str) -> int:
        """Read on; how many characters were used. Fewer than all: the call is done, or `broken` at that place."""
        for position, char in enumerate(text):
            if self._at is _At.DONE:
                return position
            if not self._read(char):
                self.broken = True
                return position
        return len(text)

    def take(self) -> str:
        """Arguments read since the last call; "" before `begun`."""
        if not self.begun:
            return ""
        text = "".join(self._fresh)
        self._fresh.clear()
        return text

    def _read(self, char: str) -> bool:
        """One character; False when it can't stand there."""
        if self._at is _At.STRING:
            return self._read_string(char)
        if self._at is _At.NESTED:
            return self._read_nested(char)
        if self._at is _At.SCALAR:
            return self._read_scalar(char)
        return char in _SPACE or self._read_punctuation(char)

    def _read_punctuation(self, char: str) -> bool:
        match self._at, char:
            case (_At.OPEN, "{"):
                self._at = _At.KEY_OR_END
            case (_At.KEY_OR_END | _At.COMMA_OR_END, "}"):
                return self._end()
            case (_At.COMMA_OR_END, ","):
                self._at = _At.KEY
            case (_At.KEY_OR_END | _At.KEY, '"'):
                self._key = ""
                self._start(_At.STRING, char)
            case (_At.COLON, ":"):
                self._at = _At.VALUE_START
            case (_At.VALUE_START, _):
                return self._start_value(char)
            case _:
                return False
        return True

    def _start(self, at: _At, char: str) -> None:
        self._at = at
        self._parts = [char]
        self._escaped = False

    def _start_value(self, char: str) -> bool:
        if char in "{[":
            self._start(_At.NESTED, char)
            self._depth, self._quoted = 1, False
            self._streams = char == "{" and self._holds_arguments
            if self._streams:
                self._fresh = [char]
                self.begun = self.name is not None
            return True
        self._start(_At.STRING if char == '"' else _At.SCALAR, char)
        return char not in "}],:"

    @property
    def _holds_arguments(self) -> bool:
        return self._key in ("arguments", "parameters") and not self.begun

    def _read_string(self, char: str) -> bool:
        self._parts.append(char)
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            return self._end_string()
        return True

    def _end_string(self) -> bool:
        try:
            value = json.loads("".join(self._parts))
        except ValueError:
            return False
        if not self._key:
            self._key = value
            self._at = _At.COLON
            return bool(value)
        return self._end_value(value)

    def _read_nested(self, char: str) -> bool:
        (self._fresh if self._streams else self._parts).append(char)
        if self._quoted:
            if self._escaped:
                self._escaped = False
            elif char == "\\":
                self._escaped = True
            elif char == '"':
                self._quoted = False
        elif char == '"':
            self._quoted = True
        elif char in "{[":
            self._depth += 1
        elif char in "}]":
            self._depth -= 1
            if not self._depth:
                return self._end_value(None)
        return True

    def _read_scalar(self, char: str) -> bool:
        if char not in _SPACE and char not in ",}":
            self._parts.append(char)
            return char not in '"{[]:'
        try:
            json.loads("".join(self._parts))
        except ValueError:
            return False
        return self._end_value(None) and (char in _SPACE or self._read_punctuation(char))

    def _end_value(self, string: str | None) -> bool:
        """After a member; `string` is its value when that is a string."""
        key, self._key = self._key, ""
        self._at = _At.COMMA_OR_END
        self._streams = False
        if key == "name" and not self.begun:
            self.name = string
            self.begun = bool(string and self._fresh)
            return bool(string)
        if key in ("arguments", "parameters") and string is not None and not self.begun:
            self._fresh = [string]  # arguments that the model encoded twice
            self.begun = self.name is not None
        return True

    def _end(self) -> bool:
        self._at = _At.DONE
        if not self.begun:
            self._fresh = ["{}"]
            self.begun = self.name is not None
        return self.begun
