"""Identities that come from outside."""

from __future__ import annotations

import pytest

from services.common.ids import request_id_of, trace_id_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"


def test_a_callers_request_id_is_kept() -> None:
    assert request_id_of("abc-1") == "abc-1"


@pytest.mark.parametrize("given", [None, "", "a" * 129, "tab\tinside", "ümlaut"])
def test_a_useless_request_id_is_replaced(given: str | None) -> None:
    made = request_id_of(given)
    assert made.startswith("req-")
    assert made != request_id_of(given)


@pytest.mark.parametrize(
    ("header", "trace"),
    [
        (f"00-{TRACE}-00f067aa0ba902b7-01", TRACE),
        (f"cc-{TRACE}-00f067aa0ba902b7-01-what-the-future-adds", TRACE),
        (f"00-{'0' * 32}-00f067aa0ba902b7-01", ""),
        (f"00-{TRACE.upper()}-00f067aa0ba902b7-01", ""),
        ("garbage", ""),
        (None, ""),
    ],
)
def test_trace_id(header: str | None, trace: str) -> None:
    assert trace_id_of(header) == trace
