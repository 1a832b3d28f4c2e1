"""The model card."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.common.card import CARD, CardError, CardMeta, ModelCard

META = CardMeta(model="nano", version="v", engine="sim", context_length=1024, vocab_size=2048)


def join(pieces: list[tuple[str, bytes]]) -> dict[str, bytes]:
    """What the receiving side does with the pieces."""
    files: dict[str, bytes] = {}
    name = ""
    for piece_name, data in pieces:
        name = piece_name or name
        files[name] = files.get(name, b"") + data
    return files


@given(
    st.dictionaries(st.text(min_size=1, max_size=9).filter(lambda name: name != CARD), st.binary(max_size=70)),
    st.integers(1, 40),
)
def test_a_card_survives_the_wire(files: dict[str, bytes], size: int) -> None:
    card = ModelCard(META, files)
    pieces = card.pieces(size)
    assert all(len(data) <= size for _, data in pieces)
    again = ModelCard.parse(join(pieces), card.hash)
    assert (again.meta, again.files, again.hash) == (card.meta, card.files, card.hash)


def test_the_hash_covers_everything() -> None:
    card = ModelCard(META, {"tokenizer.json": b"a"})
    others = [
        ModelCard(META, {"tokenizer.json": b"b"}),
        ModelCard(META, {"tokenizer2.json": b"a"}),
        ModelCard(META, {"tokenizer.json": b"a", "more": b""}),
        ModelCard(META.model_copy(update={"context_length": 2048}), {"tokenizer.json": b"a"}),
    ]
    assert len({card.hash, *(other.hash for other in others)}) == 5
    for other in others:
        with pytest.raises(CardError, match="hash is"):
            ModelCard.parse(join(other.pieces()), card.hash)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, r"no card\.json"),
        ({CARD: b"{}"}, r"card\.json is not a card"),
        ({CARD: b"\xff"}, r"card\.json is not a card"),
        ({CARD: META.model_dump_json().replace("1024", "0").encode()}, "context_length"),
        ({CARD: META.model_dump_json().replace("{", '{"colour": 1,', 1).encode()}, "colour"),
    ],
)
def test_what_is_no_card_is_refused(files: dict[str, bytes], message: str) -> None:
    with pytest.raises(CardError, match=message):
        ModelCard.parse(files, "x")


@pytest.mark.parametrize(("data", "expected"), [(None, {}), (b'{"a": 1}', {"a": 1}), (b"[]", None), (b"{", None)])
def test_json_files(data: bytes | None, expected: dict[str, Any] | None) -> None:
    card = ModelCard(META, {} if data is None else {"x.json": data})
    if expected is None:
        with pytest.raises(CardError, match=r"x\.json is not"):
            card.json_file("x.json")
    else:
        assert card.json_file("x.json") == expected
