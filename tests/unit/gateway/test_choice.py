"""One choice: the same text however its tokens come, exactly once."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.errors import EngineError, PenstockError, ProtocolError
from services.common.frames import FinishReason
from services.gateway.text.tools import ToolCallParser
from tests.unit.gateway.listeners import Recorder, choice_of, ids
from tests.unit.gateway.text import tokenizers_made as made

TEXTS = st.text(st.sampled_from("ab c\n🌍世ж<>{}"), max_size=30)


def batches(tokens: list[int], cuts: list[int]) -> list[list[int]]:
    """`tokens` in pieces that end after `cuts` (taken modulo the length)."""
    ends = sorted({cut % (len(tokens) + 1) for cut in cuts} | {0, len(tokens)})
    return [tokens[start:end] for start, end in itertools.pairwise(ends) if end > start]


def run(pieces: list[list[int]], *, stops: list[str]) -> tuple[str, list[tuple[int, str, int]]]:
    recorder = Recorder()
    choice = choice_of(recorder, stops=stops)
    first = 0
    for piece in pieces:
        choice.on_tokens(first, piece, None)
        first += len(piece)
    choice.on_finish(FinishReason.STOP, 3, 0, first, "")
    assert not recorder.errors
    return recorder.text, recorder.ends


@given(TEXTS, st.lists(st.integers(0, 60)), st.lists(st.text(st.sampled_from("ab 🌍"), min_size=1, max_size=3)))
def test_text_reason_and_count_do_not_depend_on_how_tokens_are_batched(
    text: str, cuts: list[int], stops: list[str]
) -> None:
    tokens = ids(text)
    one_by_one = run([[token] for token in tokens], stops=stops)
    assert run(batches(tokens, cuts), stops=stops) == one_by_one
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    if found:
        assert len(one_by_one[0]) <= min(found) + max(map(len, stops))
        assert one_by_one[1][0][1] == "stop"
    else:
        assert one_by_one == (text, [(0, "stop", len(tokens))])


@given(TEXTS, st.lists(st.integers(0, 60)))
def test_a_delta_names_the_last_token_it_consumed(text: str, cuts: list[int]) -> None:
    recorder = Recorder()
    choice = choice_of(recorder)
    consumed = 0
    for piece in batches(ids(text), cuts):
        choice.on_tokens(consumed, piece, None)
        consumed += len(piece)
        if recorder.deltas:
            assert recorder.deltas[-1][2] <= consumed - 1
    indexes = [index for _, _, index, _ in recorder.deltas]
    assert indexes == sorted(set(indexes))
    assert "\ufffd" not in recorder.text


def test_a_stop_string_across_tokens_ends_the_answer_before_it() -> None:
    recorder = Recorder()
    choice = choice_of(recorder, stops=["END"])
    for index, token in enumerate(ids("water E")):
        choice.on_tokens(index, [token], None)
    assert recorder.text == "water "
    choice.on_tokens(len(choice.produced), ids("ND"), None)
    assert recorder.text == "water "
    assert recorder.ends == [(0, "stop", len(ids("water END")))]
    assert recorder.ended_early == [True]


def test_tokens_after_a_stop_string_are_neither_shown_nor_counted_and_the_owner_hears_once() -> None:
    recorder = Recorder()
    choice = choice_of(recorder, stops=["."])
    tokens = ids("yes. and more")
    choice.on_tokens(0, tokens, None)
    choice.on_tokens(len(tokens), ids("even more"), None)
    choice.on_finish(FinishReason.LENGTH, 1, 0, len(tokens) + 9, "")
    choice.on_lost("gone")
    assert recorder.text == "yes"
    assert recorder.ends == [(0, "stop", len(ids("yes.")))]
    assert choice.produced == ids("yes.")
    assert recorder.ended_early == [True]
    assert recorder.lost == []


def test_text_held_for_half_a_stop_string_comes_at_the_end() -> None:
    recorder = Recorder()
    choice = choice_of(recorder, stops=["END"])
    tokens = ids("the EN")
    choice.on_tokens(0, tokens, None)
    assert recorder.text == "the "
    choice.on_finish(FinishReason.LENGTH, 1, 0, len(tokens), "")
    assert recorder.text == "the EN"
    assert recorder.ends == [(0, "length", len(tokens))]


def test_a_gap_fails_the_choice_and_later_tokens_change_nothing() -> None:
    recorder = Recorder()
    choice = choice_of(recorder)
    choice.on_tokens(0, ids("ab"), None)
    choice.on_tokens(3, ids("d"), None)
    choice.on_tokens(2, ids("c"), None)
    assert [type(error) for error in recorder.errors] == [ProtocolError]
    assert "tokens 2 to 2" in recorder.errors[0].message
    assert recorder.text == "ab"
    assert recorder.ends == []


@pytest.mark.parametrize("stops", [[], ["zz"]])
def test_what_is_known_already_is_left_out(stops: list[str]) -> None:
    recorder = Recorder()
    choice = choice_of(recorder, stops=stops)
    choice.on_tokens(0, ids("abc"), None)
    choice.on_tokens(1, ids("bcde"), None)
    choice.on_tokens(0, ids("ab"), None)
    assert recorder.text == "abcde"
    assert choice.produced == ids("abcde")
    assert recorder.errors == []


def test_an_end_that_counts_other_tokens_than_came_is_an_error() -> None:
    recorder = Recorder()
    choice = choice_of(recorder)
    choice.on_tokens(0, ids("ab"), None)
    choice.on_finish(FinishReason.STOP, 1, 0, 3, "")
    assert [type(error) for error in recorder.errors] == [ProtocolError]
    assert recorder.ends == []


@pytest.mark.parametrize("reason", [FinishReason.FAILED, FinishReason.ABORTED, FinishReason.INVALID])
def test_an_end_that_is_no_answers_end_is_the_owners_error(reason: FinishReason) -> None:
    recorder = Recorder()
    choice_of(recorder).on_finish(reason, 0, 0, 0, "why")
    assert [type(error) for error in recorder.errors] == [EngineError]
    assert recorder.errors[0].message == f"{reason.name} why"


def test_a_refused_choice_can_still_be_made_elsewhere() -> None:
    recorder = Recorder()
    choice = choice_of(recorder)
    choice.on_finish(FinishReason.REFUSED, 0, 0, 0, "")
    assert (recorder.refused, choice.done) == (1, False)
    choice.on_tokens(0, ids("ab"), None)
    assert recorder.text == "ab"


def test_logprobs_wait_with_the_text_that_is_held_back() -> None:
    recorder = Recorder()
    choice = choice_of(recorder, stops=["END"])
    tokens = ids("aEN.")
    for index, token in enumerate(tokens):
        choice.on_tokens(index, [token], [(token, -0.5 - index, [])])
    choice.on_finish(FinishReason.STOP, 1, 0, len(tokens), "")
    rows = [row for _, _, _, extra in recorder.deltas if extra is not None for row in extra.logprobs]
    assert rows == [(token, -0.5 - index, []) for index, token in enumerate(tokens)]
    assert [(text, index) for _, text, index, _ in recorder.deltas] == [("a", 0), ("EN.", 3)]


def test_logprobs_of_a_half_character_come_with_the_whole_one() -> None:
    recorder = Recorder()
    choice = choice_of(recorder)
    tokens = ids("🌍")
    assert len(tokens) > 1
    for index, token in enumerate(tokens):
        choice.on_tokens(index, [token], [(token, -1.0, [])])
    assert [(text, len(extra.logprobs)) for _, text, _, extra in recorder.deltas if extra] == [("🌍", len(tokens))]


def test_logprobs_of_an_answer_without_text_are_not_lost() -> None:
    recorder = Recorder()
    choice = choice_of(recorder)
    end = made.token_id(made.byte_level(), "<|end|>")
    choice.on_tokens(0, [end], [(end, -0.1, [])])
    choice.on_finish(FinishReason.STOP, 1, 0, 1, "")
    assert [extra.logprobs for _, _, _, extra in recorder.deltas if extra] == [[(end, -0.1, [])]]


def test_logprobs_for_only_some_tokens_are_an_error() -> None:
    recorder = Recorder()
    choice = choice_of(recorder)
    choice.on_tokens(0, ids("ab"), [(ids("a")[0], -0.1, [])])
    assert [type(error) for error in recorder.errors] == [ProtocolError]


@pytest.mark.parametrize("stops", [[], ["zz"]])
def test_an_end_token_that_would_show_as_text_is_hidden_but_counted(stops: list[str]) -> None:
    end = ids("!")[0]
    recorder = Recorder()
    choice = choice_of(recorder, stops=stops, hidden=frozenset({end}))
    choice.on_tokens(0, ids("hi!"), None)
    choice.on_finish(FinishReason.STOP, 1, 0, 3, "")
    assert recorder.text == "hi"
    assert recorder.ends == [(0, "stop", 3)]


def parser(choice: int) -> ToolCallParser:
    return ToolCallParser(f"r/{choice}")


def test_a_tool_call_has_its_own_finish_reason() -> None:
    recorder = Recorder()
    choice = choice_of(recorder, tools=parser)
    tokens = ids('sure <tool_call>{"name": "w", "arguments": {"city": "Köln"}}</tool_call>')
    for index, token in enumerate(tokens):
        choice.on_tokens(index, [token], None)
    choice.on_finish(FinishReason.STOP, 1, 0, len(tokens), "")
    calls = [call for _, _, _, extra in recorder.deltas if extra is not None for call in extra.tool_calls]
    assert recorder.text == "sure "
    assert calls[0]["function"]["name"] == "w"
    assert json.loads("".join(call["function"]["arguments"] for call in calls)) == {"city": "Köln"}
    assert recorder.ends == [(0, "tool_calls", len(tokens))]


def test_a_tool_call_cut_off_by_the_length_says_length() -> None:
    recorder = Recorder()
    choice = choice_of(recorder, tools=parser)
    tokens = ids('<tool_call>{"name": "w", "arguments": {"ci')
    choice.on_tokens(0, tokens, None)
    choice.on_finish(FinishReason.LENGTH, 1, 0, len(tokens), "")
    assert recorder.ends == [(0, "length", len(tokens))]


def test_text_that_only_began_like_a_tool_call_is_content() -> None:
    recorder = Recorder()
    choice = choice_of(recorder, tools=parser)
    tokens = ids("a <tool_ca")
    choice.on_tokens(0, tokens, None)
    choice.on_finish(FinishReason.STOP, 1, 0, len(tokens), "")
    assert recorder.text == "a <tool_ca"
    assert recorder.ends == [(0, "stop", len(tokens))]


def test_a_listener_that_fails_ends_its_own_choice_only() -> None:
    class Broken(Recorder):
        def on_delta(self, choice: int, text: str, last_index: int, extra: object) -> None:
            raise RuntimeError("boom")

    recorder = Broken()
    choice = choice_of(recorder)
    choice.on_tokens(0, ids("ab"), None)
    assert [type(error) for error in recorder.errors] == [PenstockError]
    assert choice.done
