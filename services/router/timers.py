"""Timers on an injected clock: a heap with lazy cancellation, whose memory follows the live timers."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SLACK = 64


class Timer:
    """One call of `action(now, lateness_s)` at `due`."""

    __slots__ = ("action", "due")

    def __init__(self, due: float, action: Callable[[float, float], None]) -> None:
        self.due = due
        self.action: Callable[[float, float], None] | None = action


class Timers:
    """Every wait of the scheduler. `due` and `now` are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._order = 0
        self._cancelled = 0

    def __len__(self) -> int:
        return len(self._heap) - self._cancelled

    def add(self, due: float, action: Callable[[float, float], None]) -> Timer:
        """Call `action(now, lateness_s)` from the first `run` at or after `due`."""
        timer = Timer(due, action)
        self._order += 1
        heapq.heappush(self._heap, (due, self._order, timer))
        return timer

    def cancel(self, timer: Timer | None) -> None:
        """Forget the timer; None, a fired or a cancelled one is fine."""
        if timer is None or timer.action is None:
            return
        timer.action = None
        self._cancelled += 1
        if self._cancelled > _SLACK + len(self._heap) // 2:
            self._heap = [entry for entry in self._heap if entry[2].action is not None]
            heapq.heapify(self._heap)
            self._cancelled = 0

    def next_due(self) -> float | None:
        """When the earliest live timer is due; None = there is none."""
        heap = self._heap
        while heap and heap[0][2].action is None:
            heapq.heappop(heap)
            self._cancelled -= 1
        return heap[0][0] if heap else None

    def run(self, now: float) -> None:
        """Fire what is due, earliest first. A timer that an action adds waits for the next run, even if due already."""
        newest = self._order
        while (at := self.next_due()) is not None and at <= now and self._heap[0][1] <= newest:
            timer = heapq.heappop(self._heap)[2]
            action, timer.action = timer.action, None
            if action is not None:
                action(now, now - timer.due)
