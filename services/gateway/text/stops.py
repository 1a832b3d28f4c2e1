"""Stop strings across token boundaries.

Text is read character by character. The stop string that completes first ends the text; of those that complete at the
same character the one that starts earliest (the longest) counts, and the text before it is what the client gets. So
the outcome is a pure function of the text, however it was split, and is known at the first moment it can be.

The automaton is Aho and Corasick's (CACM 18(6), 1975): its depth is the length of the longest suffix that may still
become a stop string, which is exactly what must be held back.
"""

from __future__ import annotations

import re
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StopMatcher:
    """Feeds text through, up to the first stop string. One per choice; with no stop strings, don't make one.

    Args:
        stops: non-empty strings.
    """

    __slots__ = ("_automaton", "_held", "_state", "_stopped")

    def __init__(self, stops: Sequence[str] | Automaton) -> None:
        self._automaton = stops if isinstance(stops, Automaton) else Automaton(stops)
        self._state = 0
        self._held = ""
        self._stopped = False

    def feed(self, text: str) -> tuple[str, bool]:
        """(text that is safe to emit, whether a stop string was reached). After a stop nothing more is emitted."""
        if self._stopped:
            return "", True
        automaton = self._automaton
        state = self._state
        if not state and not automaton.starts(text):
            return text, False
        held = self._held
        for position, char in enumerate(text, start=len(held) + 1):
            state = automaton.step(state, char)
            length = automaton.found[state]
            if length:
                self._stopped, self._held = True, ""
                return (held + text)[: position - length], True
        self._state = state
        whole = held + text
        safe = len(whole) - automaton.depth[state]
        self._held = whole[safe:]
        return whole[:safe], False

    def flush(self) -> str:
        """At the end: what was held back in vain."""
        held, self._held, self._state = self._held, "", 0
        return held


class Automaton:
    """The stop strings of a request, compiled; shared by its choices. Size: one node per character of `stops`."""

    __slots__ = ("_fail", "_next", "_starts", "depth", "found")

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._fail = [0]
        self.depth = [0]
        """Node -> length of what it stands for."""
        self.found = [0]
        """Node -> length of the longest stop string that ends there; 0 = none."""
        for stop in stops:
            self._insert(stop)
        self._link()
        self._starts = re.compile("[" + re.escape("".join(self._next[0])) + "]") if stops else re.compile(r"(?!)")

    def starts(self, text: str) -> bool:
        """Whether some stop string could begin in `text`."""
        return self._starts.search(text) is not None

    def step(self, state: int, char: str) -> int:
        """The node after one more character."""
        while True:
            following = self._next[state].get(char)
            if following is not None:
                return following
            if not state:
                return 0
            state = self._fail[state]

    def _insert(self, stop: str) -> None:
        node = 0
        for char in stop:
            following = self._next[node].get(char)
            if following is None:
                following = len(self._next)
                self._next[node][char] = following
                self._next.append({})
                self._fail.append(0)
                self.depth.append(self.depth[node] + 1)
                self.found.append(0)
            node = following
        self.found[node] = len(stop)

    def _link(self) -> None:
        """Breadth first: each node fails to the longest proper suffix that is also a node."""
        queue = deque(self._next[0].values())
        while queue:
            node = queue.popleft()
            for char, child in self._next[node].items():
                self._fail[child] = self.step(self._fail[node], char)
                self.found[child] = self.found[child] or self.found[self._fail[child]]
                queue.append(child)
