"""Stop strings, whatever the split."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.gateway.text.stops import StopMatcher

if TYPE_CHECKING:
    from collections.abc import Sequence


def oracle(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Character by character, the slow way."""
    for end in range(1, len(text) + 1):
        lengths = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if lengths:
            return text[: end - max(lengths)], True
    return text, False


def held(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that is a proper prefix of a stop string."""
    return max(
        (n for stop in stops for n in range(1, min(len(stop) - 1, len(text)) + 1) if text.endswith(stop[:n])), default=0
    )


letters = st.text(alphabet="ab你", max_size=30)
stop_lists = st.lists(st.text(alphabet="ab你", min_size=1, max_size=5), min_size=1, max_size=4)


@given(text=letters, stops=stop_lists, cuts=st.lists(st.integers(0, 30), max_size=8))
def test_any_split_equals_the_oracle(text: str, stops: list[str], cuts: list[int]) -> None:
    matcher = StopMatcher(stops)
    out, stopped, last = "", False, 0
    for cut in [*sorted(min(cut, len(text)) for cut in cuts), len(text)]:
        piece, stopped = matcher.feed(text[last:cut])
        out += piece
        last = cut
    assert (out + matcher.flush(), stopped) == oracle(text, stops)


@given(text=letters, stops=stop_lists)
def test_holds_back_exactly_what_may_become_a_stop(text: str, stops: list[str]) -> None:
    whole, found = oracle(text, stops)
    out, stopped = StopMatcher(stops).feed(text)
    assert stopped == found
    assert out == (whole if found else text[: len(text) - held(text, stops)])


@pytest.mark.parametrize(
    ("stops", "text", "expected"),
    [
        (["END"], "the END of it", "the "),
        (["\n\n"], "a\n\nb", "a"),
        (["b", "abc"], "xabc", "xa"),  # "b" is complete before "abc" is
        (["bc", "abc"], "xabc", "x"),  # complete at the same character: the earlier start
        (["aa"], "aaa", ""),
        (["[x]", "^-\\"], "a^-\\b", "a"),  # no character is special
    ],
)
def test_which_stop_counts(stops: list[str], text: str, expected: str) -> None:
    assert StopMatcher(stops).feed(text) == (expected, True)


def test_nothing_comes_after_a_stop() -> None:
    matcher = StopMatcher(["."])
    assert matcher.feed("a.b") == ("a", True)
    assert matcher.feed("c") == ("", True)
    assert matcher.flush() == ""


def test_text_that_can_not_be_a_stop_goes_straight_through() -> None:
    matcher = StopMatcher(["<end>"])
    assert matcher.feed("hello ") == ("hello ", False)
    assert matcher.feed("<en") == ("", False)
    assert matcher.feed("try>") == ("<entry>", False)
    assert matcher.feed("<e") == ("", False)
    assert matcher.flush() == "<e"


def test_no_stops_match_nothing() -> None:
    assert StopMatcher([]).feed("anything") == ("anything", False)
