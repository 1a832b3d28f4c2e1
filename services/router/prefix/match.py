"""How much of a waiting prompt is cached where; looked up again when the answer has aged."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.router.prefix.tracker import PrefixTracker
    from services.router.requests import Request
    from services.router.workers import Worker

_FRESH_S = 0.25
"""A waiting request is looked at whenever room comes; its prefix hits change more slowly than that."""


class Match:
    """Of one request."""

    __slots__ = ("_at", "_hits", "_request", "_tracker")

    def __init__(self, tracker: PrefixTracker, request: Request) -> None:
        self._tracker = tracker
        self._request = request
        self._at = tracker.now
        self._hits = tracker.look_up(request)

    @property
    def now(self) -> float:
        """The scheduler's clock."""
        return self._tracker.now

    def hits(self) -> dict[Worker, int]:
        """Worker -> tokens of the prompt predicted to be cached there; those with none, or not trusted, left out."""
        tracker = self._tracker
        if tracker.now - self._at > _FRESH_S:
            self._at = tracker.now
            self._hits = tracker.look_up(self._request)
        return self._hits
