"""How long answers really get, learned per model and tenant from what was generated. Pure and bounded."""

from __future__ import annotations

import math
from collections import OrderedDict

_KEYS_MAX = 4096
_QUANTILE = 0.9
_STEP = 0.1
"""Of the logarithm: about 50 answers until the estimate has settled."""
_SAMPLES_MIN = 8


class OutputLengths:
    """An online estimate of the 90th percentile of generated tokens, by stochastic approximation of its logarithm."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], list[float]] = OrderedDict()  # log of the quantile, samples

    def learn(self, model: str, tenant: str, tokens: int) -> None:
        """A finished answer (one choice) had so many tokens."""
        value = math.log(max(1, tokens))
        entry = self._known.get((model, tenant))
        if entry is None:
            self._known[model, tenant] = [value, 1.0]
            if len(self._known) > _KEYS_MAX:
                self._known.popitem(last=False)
            return
        self._known.move_to_end((model, tenant))
        entry[0] += _STEP * (_QUANTILE - (value <= entry[0]))
        entry[1] += 1.0

    def likely(self, model: str, tenant: str, max_tokens: int) -> int:
        """Tokens that nine of ten answers stay under; `max_tokens` while too few were seen."""
        entry = self._known.get((model, tenant))
        if entry is None or entry[1] < _SAMPLES_MIN:
            return max_tokens
        return min(max_tokens, math.ceil(math.exp(entry[0])))
