"""Delays between attempts grow, stay under the cap, and start over."""

from __future__ import annotations

from services.gateway.mesh.backoff import Backoff


def test_delays_double_with_jitter_up_to_the_cap() -> None:
    backoff = Backoff(0.1, 2.0)
    for attempt in range(40):
        ceiling = min(2.0, 0.1 * 2**attempt)
        assert ceiling / 2 <= backoff.next_s() <= ceiling


def test_a_success_starts_over() -> None:
    backoff = Backoff(0.1, 2.0)
    for _ in range(10):
        backoff.next_s()
    backoff.reset()
    assert backoff.next_s() <= 0.1
