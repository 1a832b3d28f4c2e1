"""All text handling of one model, made from its card once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.common.card import CHAT_TEMPLATE, TOKENIZER, CardError
from services.gateway.text.detokenizer import Vocabulary
from services.gateway.text.template import ChatTemplate, NoTemplate
from services.gateway.text.tokenize import Tokenization

if TYPE_CHECKING:
    from services.common.card import CardMeta, ModelCard


@dataclass(frozen=True, slots=True)
class TextModel:
    """Vocabulary, tokenization and template of a card. Building one takes up to a second: do it in a thread."""

    meta: CardMeta
    card_hash: str
    tokenization: Tokenization
    vocabulary: Vocabulary
    template: ChatTemplate | NoTemplate

    @classmethod
    def from_card(cls, card: ModelCard) -> TextModel:
        """Read the tokenizer and the template of `card`.

        Raises:
            CardError: it has no tokenizer.json, or one of the files is broken.
        """
        meta = card.meta
        data = card.files.get(TOKENIZER)
        if data is None:
            raise CardError(f"the card of {meta.model} has no {TOKENIZER}")
        tokenization = Tokenization.from_bytes(data, bos_token=meta.bos_token)
        return cls(
            meta=meta,
            card_hash=card.hash,
            tokenization=tokenization,
            vocabulary=Vocabulary.from_tokenizer(tokenization.tokenizer, vocab_size=meta.vocab_size),
            template=_template(card),
        )


def _template(card: ModelCard) -> ChatTemplate | NoTemplate:
    source = card.files.get(CHAT_TEMPLATE)
    if source is None:
        return NoTemplate(card.meta.model)
    try:
        text = source.decode()
    except UnicodeDecodeError as error:
        raise CardError(f"{CHAT_TEMPLATE} is not UTF-8") from error
    return ChatTemplate(text, bos_token=card.meta.bos_token, eos_token=card.meta.eos_token)
