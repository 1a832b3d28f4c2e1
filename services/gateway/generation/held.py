"""What waits for a client that can't be written to: deltas, merged per choice, bounded."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.common.errors import CancelledError_
from services.gateway.generation.choice import Extra

if TYPE_CHECKING:
    from collections.abc import Iterator

HELD_CHARS_MAX = 4 * 1024 * 1024
"""Merged text of one client above which it is given up; log probabilities and tool calls count as what they become."""
LOGPROB_CHARS = 64
"""One token's log probability, or one alternative, in JSON."""


@dataclass(slots=True)
class HeldChoice:
    """One choice's merged delta, and its end if that came too."""

    texts: list[str] = field(default_factory=list)
    last_index: int = -1
    extra: Extra | None = None
    end: tuple[str, int] | None = None

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(self.texts)

    @property
    def has_delta(self) -> bool:
        """Something beside the end."""
        return bool(self.texts) or self.extra is not None


class Held:
    """Merged deltas of all choices of one response."""

    def __init__(self) -> None:
        self._choices: dict[int, HeldChoice] = {}
        self._chars = 0

    def __bool__(self) -> bool:
        return bool(self._choices)

    @property
    def error(self) -> CancelledError_ | None:
        """Set once the client left too much unread."""
        if self._chars <= HELD_CHARS_MAX:
            return None
        return CancelledError_(f"the client left {self._chars} characters unread")

    def delta(self, choice: int, text: str, last_index: int, extra: Extra | None) -> None:
        """Merge a delta; dropped once `error` is set."""
        if self._chars > HELD_CHARS_MAX:
            return
        held = self._choices.setdefault(choice, HeldChoice())
        held.texts.append(text)
        held.last_index = last_index
        self._chars += len(text)
        if extra is not None:
            self._chars += _size(extra)
            if held.extra is None:
                held.extra = Extra()
            held.extra.logprobs.extend(extra.logprobs)
            held.extra.tool_calls.extend(extra.tool_calls)

    def end(self, choice: int, reason: str, tokens: int) -> None:
        """The end of a choice, after its merged delta."""
        self._choices.setdefault(choice, HeldChoice()).end = (reason, tokens)

    def take(self) -> Iterator[tuple[int, HeldChoice]]:
        """All that is held, by choice; nothing is held after it."""
        choices, self._choices, self._chars = self._choices, {}, 0
        return iter(choices.items())


def _size(extra: Extra) -> int:
    rows = sum(1 + len(top) for _, _, top in extra.logprobs)
    return rows * LOGPROB_CHARS + sum(len(call["function"]["arguments"]) for call in extra.tool_calls)
