"""Text comes out whole, whatever the tokens and however they are batched."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.text.detokenizer import Vocabulary
from services.gateway.text.windowed import RUN_MAX
from tests.unit.gateway.text import tokenizers_made as made

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenizers import Tokenizer

    Make = Callable[[], Tokenizer]

_VOCABULARIES: dict[str, Vocabulary] = {}


def vocabulary(make: Make) -> Vocabulary:
    if make.__name__ not in _VOCABULARIES:
        tokenizer = make()
        # Past the tokenizer's own ids: models pad their vocabulary.
        _VOCABULARIES[make.__name__] = Vocabulary.from_tokenizer(
            tokenizer, vocab_size=tokenizer.get_vocab_size(with_added_tokens=True) + 8
        )
    return _VOCABULARIES[make.__name__]


def streamed(make: Make, ids: Sequence[int], splits: Sequence[int]) -> tuple[str, list[str]]:
    """The whole text, and what was out after each push."""
    detokenizer = vocabulary(make).detokenizer()
    out, states, at = "", [], 0
    for size in splits:
        out += detokenizer.push(ids[at : at + size])
        states.append(out)
        at += size
    out += detokenizer.push(ids[at:])
    return out + detokenizer.flush(), states


every_tokenizer = pytest.mark.parametrize("make", made.ALL, ids=lambda make: make.__name__)


@every_tokenizer
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_any_split_of_random_ids_equals_decode(make: Make, data: st.DataObject) -> None:
    size = make().get_vocab_size(with_added_tokens=True)
    ids = data.draw(st.lists(st.integers(0, size + 20), max_size=80))
    splits = data.draw(st.lists(st.integers(0, 5), max_size=80))
    text, _ = streamed(make, ids, splits)
    assert text == make().decode(ids, skip_special_tokens=True)


@every_tokenizer
@given(data=st.data())
@settings(max_examples=80, deadline=None)
def test_what_is_out_depends_on_the_ids_alone(make: Make, data: st.DataObject) -> None:
    size = make().get_vocab_size(with_added_tokens=True)
    ids = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=60))
    _, one_by_one = streamed(make, ids, [1] * len(ids))
    at = data.draw(st.integers(1, len(ids)))
    _, batched = streamed(make, ids, [at])
    assert batched[0] == one_by_one[at - 1]


@pytest.mark.parametrize("make", [made.byte_level, made.llama], ids=lambda make: make.__name__)
@given(text=st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_no_half_character_ever(make: Make, text: str) -> None:
    # "é" is an added token in byte_level, which `decode` itself takes for the byte 0xE9.
    clean = text.replace("\ufffd", "").replace("é", "")
    ids = make().encode(clean, add_special_tokens=False).ids
    _, states = streamed(make, ids, [1] * len(ids))
    assert all("\ufffd" not in state for state in states)


def test_a_character_is_held_until_it_is_complete() -> None:
    ids = made.byte_level().encode("🚀").ids
    assert len(ids) > 1
    detokenizer = vocabulary(made.byte_level).detokenizer()
    assert [detokenizer.push([token]) for token in ids] == [""] * (len(ids) - 1) + ["🚀"]
    assert detokenizer.flush() == ""


def test_flush_shows_broken_bytes_once_and_empties() -> None:
    ids = made.byte_level().encode("🚀").ids[:-1]
    detokenizer = vocabulary(made.byte_level).detokenizer()
    assert detokenizer.push(ids) == ""
    assert detokenizer.flush() == "\ufffd"
    assert detokenizer.flush() == ""


def test_special_tokens_are_skipped_even_inside_a_character() -> None:
    tokenizer = made.byte_level()
    first, *rest = tokenizer.encode("é" if len(tokenizer.encode("é").ids) > 1 else "你").ids
    end = made.token_id(tokenizer, "<|end|>")
    assert streamed(made.byte_level, [first, end, *rest], [1] * 9)[0] == tokenizer.decode([first, *rest])


@pytest.mark.parametrize("make", made.MADE, ids=lambda make: make.__name__)
def test_unknown_ids_spell_nothing(make: Make) -> None:
    beyond = make().get_vocab_size(with_added_tokens=True)
    assert streamed(make, [beyond, beyond + 7, beyond + 8, 2**32 - 1], [1, 1])[0] == ""


def test_the_prompts_tail_completes_a_character() -> None:
    ids = made.byte_level().encode("🚀").ids
    detokenizer = vocabulary(made.byte_level).detokenizer(prompt_tail=ids[:1])
    assert detokenizer.push(ids[1:]) == "🚀"


def test_the_prompts_tail_keeps_a_leading_space() -> None:
    tokenizer = made.llama()
    the, valve = made.token_id(tokenizer, "▁the"), made.token_id(tokenizer, "▁valve")
    assert vocabulary(made.llama).detokenizer().push([valve]) == "valve"
    assert vocabulary(made.llama).detokenizer(prompt_tail=[1, the]).push([valve]) == " valve"


@every_tokenizer
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_after_a_prompt_the_text_goes_on(make: Make, data: st.DataObject) -> None:
    tokenizer = make()
    size = tokenizer.get_vocab_size(with_added_tokens=True)
    prompt = data.draw(st.lists(st.integers(0, size - 1), max_size=12))
    ids = data.draw(st.lists(st.integers(0, size - 1), max_size=12))
    tail = vocabulary(make).detokenizer(prompt)
    whole = vocabulary(make).detokenizer()
    before = whole.push(prompt)
    after = tail.push(ids) + tail.flush()
    assert before + after == tokenizer.decode([*prompt, *ids], skip_special_tokens=True)


def test_a_byte_run_is_held_back_only_so_long() -> None:
    tokenizer = made.llama()
    ids = [made.token_id(tokenizer, f"<0x{byte:02X}>") for byte in "é".encode()] * RUN_MAX
    detokenizer = vocabulary(made.llama).detokenizer()
    assert detokenizer.push(ids[:RUN_MAX]) == "é" * (RUN_MAX // 2)
    rest = detokenizer.push(ids[RUN_MAX:]) + detokenizer.flush()
    assert rest == "é" * (RUN_MAX // 2)


def test_a_long_run_keeps_an_incomplete_character() -> None:
    tokenizer = made.llama()
    ids = [made.token_id(tokenizer, f"<0x{byte:02X}>") for byte in b"a" + "é".encode() * RUN_MAX]
    detokenizer = vocabulary(made.llama).detokenizer()
    out = [detokenizer.push([token]) for token in ids]
    assert "\ufffd" not in "".join(out)
    assert "".join(out) + detokenizer.flush() == "a" + "é" * RUN_MAX


@every_tokenizer
@given(data=st.data())
@settings(max_examples=20, deadline=None)
def test_long_texts_are_exact_past_the_window(make: Make, data: st.DataObject) -> None:
    size = make().get_vocab_size(with_added_tokens=True)
    ids = data.draw(st.lists(st.integers(0, size - 1), min_size=100, max_size=400))
    assert streamed(make, ids, [1] * len(ids))[0] == make().decode(ids, skip_special_tokens=True)


def test_logprobs_show_special_tokens_and_single_bytes() -> None:
    tokenizer = made.byte_level()
    table = vocabulary(made.byte_level)
    assert table.token_text(made.token_id(tokenizer, "<|end|>")) == "<|end|>"
    assert bytes(table.token_bytes(made.token_id(tokenizer, "<|end|>"))) == b"<|end|>"
    ids = tokenizer.encode("🚀").ids
    assert b"".join(bytes(table.token_bytes(token)) for token in ids) == "🚀".encode()
    assert "\ufffd" in table.token_text(ids[0])
    assert table.token_text(10**9) == ""
    assert table.token_bytes(10**9) == []


def test_logprobs_of_sentencepiece_keep_the_space() -> None:
    tokenizer = made.llama()
    table = vocabulary(made.llama)
    assert table.token_text(made.token_id(tokenizer, "▁valve")) == " valve"
    assert table.token_bytes(made.token_id(tokenizer, "<0xE4>")) == [0xE4]
    assert table.token_text(made.token_id(tokenizer, "</s>")) == "</s>"
