"""What classes and counters come to: minutes of a busy mesh in simulated time.

Two simulated engines compute 8,000 prompt tokens a second each, in steps of up to 2,048: a quarter of a second a step.
"""

from __future__ import annotations

import pytest

from tests.unit.router.mesh import Client, Mesh

WORKERS = 2
STEP_S = 0.27
"""A full step."""


def jain(shares: list[int]) -> float:
    """Jain's index: 1 = equal."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def test_two_backlogged_tenants_share_equally_whatever_they_offer() -> None:
    outcomes = Mesh(WORKERS, [Client("much", 100, 1000, 64), Client("little", 10, 1000, 64)]).run()
    for begin in range(5, 50, 5):
        served = [outcome.tokens(begin, begin + 10) for outcome in outcomes.values()]
        assert jain(served) >= 0.95


def test_a_tenant_under_its_share_hardly_notices_one_that_floods() -> None:
    """It waits for the step that runs, for what the engine has taken already, and for its own: not for the flood."""
    quiet = Client("quiet", 1.4, 2000, 64, even=True)
    alone = Mesh(WORKERS, [quiet]).run()["quiet"]
    beside = Mesh(WORKERS, [quiet, Client("flood", 14.0, 2000, 64)]).run()
    assert len(beside["quiet"].ttft_s) == len(alone.ttft_s)
    assert beside["quiet"].p99_s() <= alone.p99_s() + 3 * STEP_S
    assert beside["flood"].p99_s() > 20.0, "the flood waits for itself"


def test_batch_does_not_slow_interactive_work_and_gets_what_that_leaves() -> None:
    interactive = Client("interactive", 3.2, 2048, 64)
    batch = Client("batch", 13.0, 2048, 64, priority_class=3)
    alone = Mesh(WORKERS, [interactive]).run()["interactive"]
    all_batch = Mesh(WORKERS, [batch]).run()["batch"]
    mesh = Mesh(WORKERS, [interactive, batch])
    beside = mesh.run()
    assert beside["interactive"].p99_s() <= 1.5 * alone.p99_s()
    assert beside["interactive"].tokens(10, 60) == pytest.approx(alone.tokens(10, 60), rel=0.05)
    assert beside["batch"].tokens(10, 60) >= 0.4 * all_batch.tokens(10, 60)
