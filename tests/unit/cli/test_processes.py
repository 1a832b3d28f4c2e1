"""How ends of processes are told."""

from __future__ import annotations

import pytest

from services.cli.processes import how_it_ended, working_pid


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-9, "was killed by SIGKILL"),
        (137, "was killed by SIGKILL"),
        (143, "was killed by SIGTERM"),
        (1, "ended with status 1"),
        (70, "ended with status 70"),
        (255, "ended with status 255"),
    ],
)
def test_how_it_ended(code: int, words: str) -> None:
    assert how_it_ended(code) == words


def test_working_pid_of_nothing_is_nothing() -> None:
    assert working_pid(None) is None
