"""How fast a queue drains, and what that says about when to come back."""

from __future__ import annotations

import math

_TAU_S = 10.0
"""Memory of the rate: seconds of backlog after which an observation has lost 63 % of its weight."""
_WINDOW_MIN_S = 0.5
"""Two grants in the first millisecond of a backlog are no rate of 2,000 a second."""
_CONFIDENT_S, _CONFIDENT_GRANTS = 1.0, 5.0


class DrainRate:
    """Grants out of the queue per second of backlog, exponentially forgotten. Time without a queue doesn't count.

    A queue that stalls shows a falling rate, an idle hour leaves the last one standing.
    """

    def __init__(self) -> None:
        self._grants = 0.0
        self._tokens = 0.0
        self._backlog_s = 0.0
        self._since: float | None = None

    def backlogged(self, now: float, waiting: bool) -> None:
        """Something waits from now on, or nothing does."""
        self._advance(now)
        self._since = now if waiting else None

    def granted(self, now: float, tokens: int) -> None:
        """A request of so many tokens left the queue with a lease."""
        self._advance(now)
        self._grants += 1.0
        self._tokens += tokens

    def per_s(self, now: float) -> tuple[float, float]:
        """Requests and tokens per second; zeros before the first grant."""
        self._advance(now)
        window = max(self._backlog_s, _WINDOW_MIN_S)
        return self._grants / window, self._tokens / window

    def confident(self, now: float) -> bool:
        """Whether the rate is good enough to refuse somebody for it."""
        self._advance(now)
        return self._backlog_s >= _CONFIDENT_S and self._grants >= _CONFIDENT_GRANTS

    def _advance(self, now: float) -> None:
        if self._since is None or now <= self._since:
            return
        keep = math.exp((self._since - now) / _TAU_S)
        self._since = now
        self._grants *= keep
        self._tokens *= keep
        self._backlog_s = self._backlog_s * keep + _TAU_S * (1.0 - keep)


class RetryAfter:
    """Says to each refused request when a place in the queue will be its own.

    One place frees every 1/rate seconds. Telling that to everybody would bring a thousand clients back for one place,
    so each gets the place after the one promised before (the generic cell rate algorithm, ITU-T I.371), at most the
    time in which the whole queue drains.
    """

    def __init__(self) -> None:
        self._promised_until = -math.inf

    def next_place_s(self, now: float, rate: tuple[float, float], waiting: int, excess_tokens: int) -> float:
        """Seconds until the next unpromised place, 0.0 = no honest figure.

        Args:
            rate: requests and tokens per second, as of `DrainRate.per_s`.
            waiting: requests in the queue.
            excess_tokens: tokens that must leave the queue before this request fits under its token bound.
        """
        requests_per_s, tokens_per_s = rate
        if requests_per_s <= 0.0 or tokens_per_s <= 0.0:
            return 0.0
        place_s = max(1.0 / requests_per_s, excess_tokens / tokens_per_s)
        whole_s = max(waiting / requests_per_s, place_s)
        self._promised_until = min(max(self._promised_until, now) + place_s, now + whole_s)
        return min(self._promised_until - now, RETRY_AFTER_MAX_S)


RETRY_AFTER_MAX_S = 300.0
"""Beyond this a figure says no more than "later"."""
