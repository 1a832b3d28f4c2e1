"""What each benchmark makes of what it measured."""

from __future__ import annotations

import itertools

import pytest

from bench import memory, token, ttft


def test_ratios_are_formed_within_a_round() -> None:
    rounds = [
        {"gateway_us": 10.0, "ratio": 0.5},
        {"gateway_us": 30.0, "ratio": 1.0},
        {"gateway_us": 20.0, "ratio": 2.0},
    ]
    found = token.summary(rounds)
    assert list(found) == ["gateway_us", "ratio"]
    assert (found["gateway_us"].median, found["ratio"].median) == (20.0, 1.0)


def test_the_load_is_in_steps() -> None:
    assert token.Load(step_ms=20.0).seconds(50) == 1.0


def test_arrivals_are_a_poisson_process_of_the_rate_asked_for() -> None:
    times = ttft.arrivals(20_000, 40.0, seed=1)
    gaps = [after - before for before, after in itertools.pairwise([0.0, *times])]
    mean = sum(gaps) / len(gaps)
    variance = sum((gap - mean) ** 2 for gap in gaps) / len(gaps)
    assert min(gaps) > 0
    assert mean == pytest.approx(1 / 40, rel=0.03)
    assert variance == pytest.approx(mean**2, rel=0.1)  # exponential gaps
    assert times == ttft.arrivals(20_000, 40.0, seed=1)
    assert times != ttft.arrivals(20_000, 40.0, seed=2)


def test_added_ttft_is_the_difference_of_the_quantiles() -> None:
    direct = [number / 1000 for number in range(1, 101)]
    mesh = [2 * value for value in reversed(direct)]
    found = ttft.figures(direct, mesh)
    assert found["direct_p50_ms"] == pytest.approx(50)
    assert found["mesh_p99_ms"] == pytest.approx(198)
    assert found["added_p50_ms"] == pytest.approx(50)
    assert found["added_p99_ms"] == pytest.approx(99)


def test_memory_sends_every_kind_of_request() -> None:
    kinds = [memory.kind_of(number) for number in range(2000)]
    assert {kind: kinds.count(kind) for kind in set(kinds)} == {
        "stream": 1400, "whole": 300, "hang up": 200, "refused": 100,
    }  # fmt: skip


def test_memory_growth_is_from_the_first_mark_to_the_last() -> None:
    result = {"2000": {"gateway": 100.0}, "5000": {"gateway": 300.0}, "20000": {"gateway": 105.0}}
    assert memory.rows(result) == [["gateway", "100.0", "300.0", "105.0", "+5.0%"]]
