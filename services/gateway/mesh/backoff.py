"""Delays between attempts to reach a peer: exponential with full jitter, capped."""

from __future__ import annotations

import random


class Backoff:
    """Seconds to wait before the next attempt; `reset` after a success."""

    def __init__(self, first_s: float = 0.1, cap_s: float = 2.0) -> None:
        self._first_s = first_s
        self._cap_s = cap_s
        self._attempt = 0

    def reset(self) -> None:
        """The peer was reached."""
        self._attempt = 0

    def next_s(self) -> float:
        """Seconds until the next attempt."""
        ceiling = min(self._cap_s, self._first_s * 2.0**self._attempt)
        self._attempt = min(self._attempt + 1, 16)
        return ceiling * random.uniform(0.5, 1.0)
