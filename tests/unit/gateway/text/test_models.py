"""A card becomes a text model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.common.card import CardError, CardMeta, ModelCard
from services.common.errors import UnsupportedError
from services.gateway.text.models import TextModel
from services.gateway.text.tokenize import LONG_CHARS, Tokenization, is_long
from tests.unit.gateway.text import tokenizers_made as made

if TYPE_CHECKING:
    from tokenizers import Tokenizer


def card(tokenizer: Tokenizer, **files: bytes) -> ModelCard:
    meta = CardMeta(
        model="m",
        version="v",
        engine="sim",
        context_length=64,
        vocab_size=tokenizer.get_vocab_size(with_added_tokens=True),
        bos_token="<s>",
    )
    named = {"tokenizer.json": tokenizer.to_str().encode()}
    return ModelCard(meta, named | {name.replace("_jinja", ".jinja"): data for name, data in files.items()})


def test_a_whole_card() -> None:
    made_card = card(made.byte_level(), chat_template_jinja=b"{{ bos_token }}{{ messages[0].content }}")
    model = TextModel.from_card(made_card)
    assert model.card_hash == made_card.hash
    assert model.template.render([{"role": "user", "content": "hi"}]) == "<s>hi"
    ids = model.tokenization.encode("water runs", add_special_tokens=False)
    assert model.vocabulary.detokenizer().push(ids) == "water runs"
    assert model.tokenization.decode(ids) == "water runs"


def test_a_card_without_a_template() -> None:
    with pytest.raises(UnsupportedError, match="m has no chat template"):
        TextModel.from_card(card(made.byte_level())).template.render([])


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"model": 3}'])
def test_a_broken_tokenizer(data: bytes) -> None:
    broken = ModelCard(card(made.byte_level()).meta, {"tokenizer.json": data})
    with pytest.raises(CardError, match=r"tokenizer\.json"):
        TextModel.from_card(broken)


def test_no_tokenizer() -> None:
    with pytest.raises(CardError, match=r"has no tokenizer\.json"):
        TextModel.from_card(ModelCard(card(made.byte_level()).meta, {}))


def test_a_template_that_is_not_utf8() -> None:
    with pytest.raises(CardError, match="UTF-8"):
        TextModel.from_card(card(made.byte_level(), chat_template_jinja=b"\xff"))


def test_bos_is_added_once() -> None:
    tokenization = TextModel.from_card(card(made.llama())).tokenization
    assert tokenization.encode("a", add_special_tokens=True).count(1) == 1
    assert tokenization.encode("<s>a", add_special_tokens=True).count(1) == 1
    assert tokenization.encode("<s>a", add_special_tokens=False).count(1) == 1
    assert tokenization.encode("a", add_special_tokens=False).count(1) == 0


def test_a_tokenizers_own_truncation_is_off() -> None:
    tokenizer = made.byte_level().__class__.from_str(made.byte_level().to_str())
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=64)
    ids = Tokenization.from_bytes(tokenizer.to_str().encode()).encode("water runs down", add_special_tokens=False)
    assert ids == made.byte_level().encode("water runs down").ids


def test_long_texts() -> None:
    assert not is_long("x" * LONG_CHARS)
    assert is_long("x" * (LONG_CHARS + 1))
