"""When a process is started again, and when it is given up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.cli.table import (
    BACKOFF_S_MAX,
    BACKOFF_S_MIN,
    FAILED_STARTS_MAX,
    STABLE_S,
    GiveUp,
    ProcessTable,
    Restart,
)


def test_a_process_that_was_healthy_is_restarted_with_growing_pauses_for_ever() -> None:
    table = ProcessTable(["worker-0"])
    pauses = []
    for life in range(8):
        table.started("worker-0", 100 + life, now=life)
        table.probed("worker-0", True, now=life)
        decision = table.exited("worker-0", now=life + 0.5)
        assert isinstance(decision, Restart)
        pauses.append(decision.after_s)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0]
    assert table["worker-0"].restarts == 8


def test_a_stable_minute_resets_the_pause() -> None:
    table = ProcessTable(["router-0"])
    now = 0.0
    for _ in range(5):
        table.started("router-0", 1, now)
        table.probed("router-0", True, now)
        table.exited("router-0", now)
    table.started("router-0", 1, now)
    assert table.exited("router-0", now + STABLE_S) == Restart(BACKOFF_S_MIN)


def test_three_ends_before_it_was_ever_healthy_are_the_end() -> None:
    table = ProcessTable(["worker-0"])
    decisions = []
    for life in range(FAILED_STARTS_MAX):
        table.started("worker-0", life + 1, now=life)
        table.probed("worker-0", False, now=life)
        decisions.append(table.exited("worker-0", now=life))
    assert decisions == [Restart(0.5), Restart(1.0), GiveUp()]


def health(table: ProcessTable) -> str:
    return table["a"].health.value


def test_health_follows_the_probes() -> None:
    table = ProcessTable(["a", "b"])
    table.started("a", 7, 1.0)
    table.started("b", 8, 1.0)
    assert not table.probed("a", False, 2.0), "still starting"
    assert health(table) == "starting"
    assert table.probed("a", True, 3.0)
    assert not table.probed("a", True, 4.0)
    assert (health(table), table["a"].since) == ("serving", 3.0)
    assert not table.all_serving()
    table.probed("b", True, 5.0)
    assert table.all_serving()
    assert table.probed("a", False, 6.0)
    assert health(table) == "not_serving"
    table.stopped("a", 7.0)
    assert (health(table), table["a"].pid) == ("down", None)


def test_a_late_probe_does_not_raise_the_dead() -> None:
    table = ProcessTable(["a"])
    table.started("a", 7, 1.0)
    table.exited("a", 2.0)
    assert not table.probed("a", True, 3.0)
    assert health(table) == "down"


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 200)), min_size=1, max_size=40))
def test_pauses_stay_within_bounds_and_giving_up_only_hits_what_never_worked(lives: list[tuple[bool, int]]) -> None:
    table = ProcessTable(["a"])
    now, ever_healthy = 0.0, False
    for healthy, life_s in lives:
        table.started("a", 1, now)
        if healthy:
            table.probed("a", True, now)
            ever_healthy = True
        now += life_s
        decision = table.exited("a", now)
        if isinstance(decision, GiveUp):
            assert not ever_healthy
            return
        assert BACKOFF_S_MIN <= decision.after_s <= BACKOFF_S_MAX
        if life_s >= STABLE_S:
            assert decision.after_s == BACKOFF_S_MIN
        now += decision.after_s
