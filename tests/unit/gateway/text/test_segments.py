"""Remembered pieces: always what the tokenizer says, and bounded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from services.gateway.text import segments as module
from services.gateway.text.segments import SegmentCache, plain_added_tokens
from services.gateway.text.tokenize import Tokenization

NANO = (Path(__file__).parents[4] / "models" / "nano" / "tokenizer.json").read_text()
ADDED = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
PIECE = st.one_of(
    st.sampled_from(
        [*ADDED, " ", "\n", "  \n\n", "<|im_", "start|>", "system\n", "'s", "12 3456", "é", "🌍", "the valve"]
    ),
    st.text(max_size=12),
)


def raw(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return ids


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECE, max_size=30))
def test_pieces_give_what_the_whole_gives(pieces: list[str]) -> None:
    text = "".join(pieces)
    tokenizer = Tokenizer.from_str(NANO)
    cache = SegmentCache(lambda piece: raw(tokenizer, piece), plain_added_tokens(NANO))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CHARS_MIN", 1)
        assert cache.encode(text) == raw(tokenizer, text), "cold"
        assert cache.knows(text)
        assert cache.encode(text) == raw(tokenizer, text), "warm"


def test_a_long_piece_is_encoded_once() -> None:
    tokenizer, asked = Tokenizer.from_str(NANO), list[str]()

    def encode(piece: str) -> list[int]:
        asked.append(piece)
        return raw(tokenizer, piece)

    cache = SegmentCache(encode, plain_added_tokens(NANO))
    system = "You are careful. " * 100
    for question in ("one", "two"):
        text = f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
        assert cache.encode(text) == raw(tokenizer, text)
    assert [piece for piece in asked if len(piece) >= module.CHARS_MIN] == [f"system\n{system}"]
    assert cache.knows(text)
    assert not cache.knows(text.replace("careful", "careless"))


def changed(**parts: Any) -> str:
    return json.dumps({**json.loads(NANO), **parts})


@pytest.mark.parametrize(
    "other",
    [
        changed(pre_tokenizer={"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}),
        changed(pre_tokenizer={"type": "Metaspace", "replacement": "_", "prepend_scheme": "first", "split": False}),
        changed(normalizer={"type": "Prepend", "prepend": "_"}),
        changed(normalizer={"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Strip"}]}),
        changed(added_tokens=[{**json.loads(NANO)["added_tokens"][0], "rstrip": True}]),
    ],
)
def test_a_tokenizer_that_looks_around_is_cached_by_whole_texts_only(other: str) -> None:
    assert plain_added_tokens(other) == {}
    cache = SegmentCache(lambda _: [7], {})
    text = "x" * 300 + "<|im_end|>"
    assert (cache.encode(text), cache.encode(text), len(cache)) == ([7], [7], 1)


def test_memory_is_bounded_and_the_least_recently_used_goes() -> None:
    cache = SegmentCache(lambda piece: [1] * len(piece), {}, bytes_max=10_000)
    texts = [letter * 500 for letter in "abc"]
    for text in (texts[0], texts[1], texts[0], texts[2]):
        cache.encode(text)
    assert [cache.knows(text) for text in texts] == [True, False, True]
    assert cache.bytes <= 10_000
    cache.encode("d" * 100_000)
    assert not cache.knows("d" * 100_000)


def test_only_bare_encoding_goes_through_it() -> None:
    tokenization = Tokenization.from_bytes(NANO.encode())
    text = "<|im_start|>user\n" + "a valve " * 200
    assert tokenization.encode(text, add_special_tokens=True) == tokenization.tokenizer.encode(text).ids
    assert not tokenization.knows(text)
    assert tokenization.encode(text, add_special_tokens=False) == raw(tokenization.tokenizer, text)
    assert tokenization.knows(text)
