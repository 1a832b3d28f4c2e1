"""How long an engine step takes: t = a + b * prefill_tokens + c * running, fitted online from reported steps.

Least squares over exponentially forgotten samples, held by a small ridge to the last estimate. Plain recursive least
squares with forgetting winds up when steps carry no new information (hours of decoding say nothing about prefill);
here a direction without information stays where it was.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

PRIOR_MS = (6.0, 0.125, 0.35)
"""Before the first sample: 6 ms a step, 8,000 prefill tokens a second, 0.35 ms per running sequence."""
_LOW = (0.01, 0.0, 0.0)
_HIGH = (60_000.0, 1_000.0, 10_000.0)
_SCALE = (1.0, 1e-3, 1e-1)
"""Feature scales, so that one ridge fits all three."""
_FORGET = 0.995
"""Per sample: about the last 200 steps count."""
_RIDGE = 0.05
_OUTLIER = 8.0
"""A step over this many times its prediction (a pause, a compilation) is clipped to it."""
_TRUSTED_AFTER = 16
CHUNK_TOKENS_PRIOR = 2048
"""Prefill tokens that a step takes at most, until a larger step was seen."""
_CHUNK_TOKENS_MAX = 1 << 20

Vector = tuple[float, float, float]


class StepModel:
    """The model of one worker. Coefficients are milliseconds, per step, per prefill token, per running sequence."""

    __slots__ = ("_gram", "_moment", "a", "b", "c", "chunk_tokens", "samples")

    def __init__(self) -> None:
        self.a, self.b, self.c = PRIOR_MS
        self.chunk_tokens = CHUNK_TOKENS_PRIOR
        self.samples = 0
        self._gram = [0.0] * 6  # xx xy xz yy yz zz
        self._moment = [0.0] * 3

    @property
    def trusted(self) -> bool:
        """Enough steps were seen to refuse somebody for what the model says."""
        return self.samples >= _TRUSTED_AFTER

    def predict_ms(self, prefill_tokens: float, running: float) -> float:
        """One step with that much in it."""
        return self.a + self.b * prefill_tokens + self.c * running

    def learn(self, steps: Iterable[tuple[float, int, int]]) -> None:
        """Take (step_ms, prefill_tokens, running) samples. Values that are no step times are left out."""
        before = self.samples
        for step_ms, prefill_tokens, running in steps:
            if math.isfinite(step_ms) and 0.0 < step_ms <= _HIGH[0]:
                self._add(step_ms, prefill_tokens, running)
        if self.samples > before:
            self._solve()

    def _add(self, step_ms: float, prefill_tokens: int, running: int) -> None:
        if self.samples >= _TRUSTED_AFTER:
            step_ms = min(step_ms, _OUTLIER * self.predict_ms(prefill_tokens, running))
        y, z = prefill_tokens * _SCALE[1], running * _SCALE[2]
        gram, moment = self._gram, self._moment
        for i, product in enumerate((1.0, y, z, y * y, y * z, z * z)):
            gram[i] = gram[i] * _FORGET + product
        for i, product in enumerate((step_ms, step_ms * y, step_ms * z)):
            moment[i] = moment[i] * _FORGET + product
        self.samples += 1
        if prefill_tokens > self.chunk_tokens:
            self.chunk_tokens = min(prefill_tokens, _CHUNK_TOKENS_MAX)

    def _solve(self) -> None:
        """(G + r I) theta = m + r theta_last, by Cramer; G is positive semidefinite, so the determinant is positive."""
        xx, xy, xz, yy, yz, zz = self._gram
        xx, yy, zz = xx + _RIDGE, yy + _RIDGE, zz + _RIDGE
        last = (self.a / _SCALE[0], self.b / _SCALE[1], self.c / _SCALE[2])
        p, q, r = (moment + _RIDGE * anchor for moment, anchor in zip(self._moment, last, strict=True))
        c11, c12, c13 = yy * zz - yz * yz, xz * yz - xy * zz, xy * yz - xz * yy
        c22, c23, c33 = xx * zz - xz * xz, xy * xz - xx * yz, xx * yy - xy * xy
        det = xx * c11 + xy * c12 + xz * c13
        if not det > 0.0:
            return
        theta = (
            (c11 * p + c12 * q + c13 * r) / det,
            (c12 * p + c22 * q + c23 * r) / det,
            (c13 * p + c23 * q + c33 * r) / det,
        )
        self.a, self.b, self.c = (
            min(max(value * scale, low), high)
            for value, scale, low, high in zip(theta, _SCALE, _LOW, _HIGH, strict=True)
        )
