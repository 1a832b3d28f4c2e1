"""What waits for a slow client: merged, in order, nothing lost, bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.generation import held as module
from services.gateway.generation.choice import Extra
from services.gateway.generation.held import HELD_CHARS_MAX, Held

EVENTS = st.lists(
    st.tuples(st.integers(0, 2), st.text(max_size=3), st.lists(st.floats(-5, 0), max_size=2)), max_size=30
)


@given(EVENTS)
def test_merging_loses_and_reorders_nothing_within_a_choice(events: list[tuple[int, str, list[float]]]) -> None:
    held = Held()
    for index, (choice, text, values) in enumerate(events):
        held.delta(choice, text, index, Extra([(index, value, []) for value in values]) if values else None)
    taken = dict(held.take())
    for choice in range(3):
        mine = [(index, text, values) for index, (at, text, values) in enumerate(events) if at == choice]
        assert (choice in taken) == bool(mine)
        if mine:
            assert taken[choice].text == "".join(text for _, text, _ in mine)
            assert taken[choice].last_index == mine[-1][0]
            extra = taken[choice].extra
            got = [value for _, value, _ in extra.logprobs] if extra else []
            assert got == [value for _, _, values in mine for value in values]
    assert not held
    assert list(held.take()) == []


def test_an_end_comes_after_the_merged_delta() -> None:
    held = Held()
    held.end(1, "length", 0)
    held.delta(0, "a", 0, None)
    held.delta(0, "b", 1, None)
    held.end(0, "stop", 2)
    taken = dict(held.take())
    assert (taken[0].text, taken[0].end, taken[0].has_delta) == ("ab", ("stop", 2), True)
    assert (taken[1].text, taken[1].end, taken[1].has_delta) == ("", ("length", 0), False)


def test_a_client_that_leaves_too_much_unread_is_an_error_and_holds_no_more() -> None:
    held = Held()
    held.delta(0, "x" * HELD_CHARS_MAX, 0, None)
    assert held.error is None
    held.delta(0, "y", 1, None)
    error = held.error
    assert error is not None
    assert error.code == "cancelled"
    held.delta(0, "z" * 1000, 2, None)
    assert dict(held.take())[0].text == "x" * HELD_CHARS_MAX + "y"
    assert held.error is None


def test_log_probabilities_and_tool_calls_count_as_text_does() -> None:
    held = Held()
    rows = HELD_CHARS_MAX // module.LOGPROB_CHARS // 21 + 1
    held.delta(0, "", 0, Extra([(1, -1.0, [(n, -1.0) for n in range(20)])] * rows))
    assert held.error is not None
    held = Held()
    held.delta(0, "", 0, Extra(tool_calls=[{"index": 0, "function": {"arguments": "x" * (HELD_CHARS_MAX + 1)}}]))
    assert held.error is not None
