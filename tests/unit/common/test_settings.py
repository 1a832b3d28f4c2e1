"""Settings are refused at start, by name."""

from __future__ import annotations

import pytest
from pydantic import Field, ValidationError

from services.common.settings import Addresses, Port, ServiceSettings, load


class Example(ServiceSettings):
    """A service with one setting of each kind."""

    port: Port = 0
    """Where to listen."""
    peers: Addresses = ()
    """Who else."""
    wait_s: float = Field(default=1.0, gt=0)
    """How long."""
    fast: bool = False
    """Whether."""
    max_class: str | None = None
    """Or none."""


def test_defaults_variables_and_flags_win_in_that_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(Example, [], prog="x").wait_s == 1.0
    monkeypatch.setenv("PENSTOCK_WAIT_S", "2")
    monkeypatch.setenv("PENSTOCK_PORT", "7")
    settings = load(Example, ["--wait-s", "3"], prog="x")
    assert (settings.wait_s, settings.port) == (3.0, 7)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a:1,b:2", ("a:1", "b:2")), (" a:1 , ,b:2,", ("a:1", "b:2")), ("", ()), ("[::1]:5", ("[::1]:5",))],
)
def test_addresses_are_comma_separated(value: str, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(Example, ["--peers", value], prog="x").peers == expected
    monkeypatch.setenv("PENSTOCK_PEERS", value)
    assert load(Example, [], prog="x").peers == expected


def test_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(Example, ["--fast"], prog="x").fast
    monkeypatch.setenv("PENSTOCK_FAST", "true")
    assert not load(Example, ["--no-fast"], prog="x").fast


@pytest.mark.parametrize(
    ("flag", "variable", "value"),
    [
        ("--port", "PENSTOCK_PORT", "65536"),
        ("--port", "PENSTOCK_PORT", "eighty"),
        ("--wait-s", "PENSTOCK_WAIT_S", "0"),
        ("--drain-s", "PENSTOCK_DRAIN_S", "-1"),
        ("--log-level", "PENSTOCK_LOG_LEVEL", "loud"),
        ("--name", "PENSTOCK_NAME", "Worker 0"),
    ],
)
def test_a_wrong_value_is_refused_with_both_its_names(
    flag: str, variable: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        load(Example, [flag, value], prog="penstock-x")
    assert caught.value.code == 2
    by_flag = capsys.readouterr().err
    assert f"penstock-x: {variable} ({flag})" in by_flag
    assert value in by_flag
    monkeypatch.setenv(variable, value)
    with pytest.raises(SystemExit) as caught:
        load(Example, [], prog="penstock-x")
    assert caught.value.code == 2
    assert f"{variable} ({flag})" in capsys.readouterr().err


def test_an_unknown_flag_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load(Example, ["--prot", "1"], prog="x")
    assert caught.value.code == 2
    assert "--prot" in capsys.readouterr().err


def test_help_explains_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        load(Example, ["--help"], prog="x")
    assert caught.value.code == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "Seconds that running work gets to end after SIGTERM" in text
    assert "Where to listen." in text


def test_settings_do_not_change() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load(Example, [], prog="x").port = 1  # type: ignore[misc]
