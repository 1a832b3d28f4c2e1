"""Arithmetic and output of the benchmarks."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import machine
from bench.machine import Spread, quantile

if TYPE_CHECKING:
    from pathlib import Path

VALUES = st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=50)


@given(VALUES, st.floats(0.001, 1))
def test_a_quantile_is_the_smallest_value_that_enough_others_do_not_exceed(values: list[float], q: float) -> None:
    found = quantile(values, q)
    need = q * len(values) - 1e-9
    assert sum(value <= found for value in values) >= need
    assert not any(sum(each <= value for each in values) >= need + 1e-6 for value in values if value < found)


def test_quantiles_of_four_hundred() -> None:
    values = [float(number) for number in range(400, 0, -1)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (200.0, 396.0, 400.0)


@given(VALUES)
def test_a_spread_encloses_its_median(values: list[float]) -> None:
    spread = Spread.of(values)
    assert spread.low == min(values)
    assert spread.high == max(values)
    assert spread.low <= spread.median <= spread.high


def test_a_spread_is_shown_and_written() -> None:
    spread = Spread.of([3.0, 1.0, 2.00004])
    assert str(spread) == "2.00 (1.00 to 3.00)"
    assert spread.as_json() == {"low": 1.0, "median": 2.0, "high": 3.0}


def test_cpu_time_rises_with_work() -> None:
    before = machine.cpu_s([os.getpid()])
    sum(number * number for number in range(200_000))
    assert machine.cpu_s([os.getpid()]) > before
    assert machine.cpu_s([]) == 0


def test_a_process_that_is_gone_is_an_error_not_zero() -> None:
    with pytest.raises(FileNotFoundError):
        machine.cpu_s([2**22 + 1])


def test_the_table_is_aligned(capsys: pytest.CaptureFixture[str]) -> None:
    machine.table(["", "long header"], [["row", "1"], ["longer row", "2"]])
    assert capsys.readouterr().out.splitlines() == [
        "            long header",
        "----------  -----------",
        "row         1",
        "longer row  2",
    ]


def test_a_result_names_machine_and_versions(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "result.json"
    machine.write("token", {"figure": 1}, str(path))
    result = json.loads(path.read_text())
    assert result["benchmark"] == "token"
    assert result["figure"] == 1
    assert result["machine"]["cores"] == os.cpu_count()
    assert "grpcio" in result["machine"]["versions"]
