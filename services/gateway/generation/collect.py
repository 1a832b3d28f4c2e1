"""A `Listener` that keeps the whole answer, for responses that are not streamed."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from services.gateway.generation.choice import Extra
    from services.gateway.mesh.workers import Logprobs


@dataclass(slots=True)
class Collected:
    """One whole choice."""

    text: str = ""
    reason: str = ""
    tokens: int = 0
    logprobs: Logprobs = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)
    """The deltas as they came."""


class Collector:
    """Gathers every choice; bounded by max_tokens."""

    def __init__(self, choices: int) -> None:
        self.choices = [Collected() for _ in range(choices)]
        self.first_delta_at: float | None = None

    def on_delta(self, choice: int, text: str, last_index: int, extra: Extra | None) -> None:
        """See `Listener`."""
        if self.first_delta_at is None:
            self.first_delta_at = time.monotonic()
        collected = self.choices[choice]
        collected.text += text
        if extra is not None:
            collected.logprobs.extend(extra.logprobs)
            collected.tool_calls.extend(extra.tool_calls)

    def on_end(self, choice: int, reason: str, tokens: int) -> None:
        """See `Listener`."""
        collected = self.choices[choice]
        collected.reason, collected.tokens = reason, tokens
