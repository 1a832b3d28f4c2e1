"""Soft pools by prompt length: long prompts leave some workers free for shorter ones, as long as those come.

No worker belongs to a pool. A prompt of a longer band just may not take the last workers without backlog, so which ones
serve short prompts follows the load, and where no short prompts come, nothing is kept.
"""

from __future__ import annotations

import math
from bisect import bisect_left

_FORGET_S = 30.0
_SHARE_MAX = 4
"""At most one in four workers is kept, and with fewer than four none: a quarter is what a guess may cost."""
_HEADROOM = 0.5


class LengthPools:
    """One model. `bounds`: uncached prompt tokens up to which a prompt is in the first band, the second, and so on."""

    def __init__(self, bounds: tuple[int, ...]) -> None:
        self._bounds = bounds
        self._work = [0.0] * (len(bounds) + 1)
        self._at = 0.0

    def learn(self, now: float, uncached: int) -> None:
        """A request with that much to compute arrived."""
        if self._bounds:
            fade = math.exp((self._at - now) / _FORGET_S)
            self._at = now
            self._work = [work * fade for work in self._work]
            self._work[bisect_left(self._bounds, uncached)] += uncached

    def kept(self, uncached: int, workers: int) -> int:
        """Workers without backlog, of all `workers`, that such a request must leave to shorter ones."""
        most = workers // _SHARE_MAX
        if not self._bounds or not most or uncached <= self._bounds[0]:
            return 0
        shorter = sum(self._work[: bisect_left(self._bounds, uncached)])
        if shorter < 1.0:
            return 0
        return min(math.ceil(_HEADROOM * workers * shorter / sum(self._work)), most)
