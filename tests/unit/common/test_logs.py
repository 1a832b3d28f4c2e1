"""Logs are one JSON object a line, with the request's identities."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from services.common import logs

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    out = io.StringIO()
    root.handlers = []
    logs.configure("gateway-0", "info", logging.StreamHandler(out))
    yield out
    root.handlers, root.level = before, level


def last(out: io.StringIO) -> dict[str, Any]:
    return dict(json.loads(out.getvalue().splitlines()[-1]))


def test_a_line_says_who_what_and_when(stream: io.StringIO) -> None:
    logging.getLogger("x").info("hello\nworld", extra={"seconds": 1.5})
    line = last(stream)
    assert (line["level"], line["logger"], line["message"]) == ("INFO", "x", "hello\nworld")
    assert (line["service"], line["seconds"]) == ("gateway-0", 1.5)
    assert line["time"].endswith("+00:00")
    assert "request_id" not in line


def test_identities_come_from_the_context(stream: io.StringIO) -> None:
    tokens = [(logs.request_id, logs.request_id.set("req-1")), (logs.tenant, logs.tenant.set("dev"))]
    logging.getLogger("x").warning("slow")
    for variable, token in tokens:
        variable.reset(token)
    line = last(stream)
    assert (line["request_id"], line["tenant"]) == ("req-1", "dev")
    assert "trace_id" not in line


def test_an_exception_is_in_the_line(stream: io.StringIO) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        logging.getLogger("x").exception("broke")
    assert "ValueError: no" in last(stream)["exc_info"]


def test_the_level_holds(stream: io.StringIO) -> None:
    logging.getLogger("x").debug("hidden")
    assert stream.getvalue() == ""
