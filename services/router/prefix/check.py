"""Whether predicted prefix hits on a worker come true: what was predicted against what its engine says it reused."""

from __future__ import annotations

_KEEP = 0.98
"""Per request: about the last 50 count."""
_SAMPLES_MIN = 16
_RECOVERY = 0.1
"""It must be so much above the threshold to be trusted again, so that it doesn't come and go."""


class HitCheck:
    """Precision and recall of one worker in tokens, over about its last 50 requests that were, or should be, hits.

    Precision: of the tokens predicted to be cached, the share that was. Recall: of those that were, the share
    predicted. Low precision misplaces requests, so it decides over `trusted`; low recall only misses chances.

    Args:
        threshold: precision below which the worker's predictions are not used.
    """

    __slots__ = ("_actual", "_both", "_predicted", "_samples", "_threshold", "trusted")

    def __init__(self, threshold: float) -> None:
        self._threshold = threshold
        self._both = self._predicted = self._actual = 0.0
        self._samples = 0
        self.trusted = True

    @property
    def precision(self) -> float:
        """1.0 while nothing was predicted."""
        return self._both / self._predicted if self._predicted else 1.0

    @property
    def recall(self) -> float:
        """1.0 while nothing was reused."""
        return self._both / self._actual if self._actual else 1.0

    def add(self, predicted: int, actual: int) -> bool:
        """A request ended; whether `trusted` changed by it."""
        if not predicted and not actual:
            return False
        self._both = self._both * _KEEP + min(predicted, actual)
        self._predicted = self._predicted * _KEEP + predicted
        self._actual = self._actual * _KEEP + actual
        if predicted:
            self._samples += 1
        if self._samples < _SAMPLES_MIN:
            return False
        was = self.trusted
        if was:
            self.trusted = self.precision >= self._threshold
        else:
            self.trusted = self.precision >= min(1.0, self._threshold + _RECOVERY)
        if self.trusted is not was:
            self._samples = 0
        return self.trusted is not was
