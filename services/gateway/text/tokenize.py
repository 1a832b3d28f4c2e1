"""Text to token ids and back, with the tokenizer of a model card."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from services.common.card import CardError
from services.gateway.text.segments import SegmentCache, plain_added_tokens

if TYPE_CHECKING:
    from collections.abc import Sequence

LONG_CHARS = 8 * 1024
"""From here on `encode` takes milliseconds: run it in a thread (tokenizers releases the GIL)."""


class Tokenization:
    """A tokenizer without truncation and padding. Thread-safe."""

    def __init__(self, tokenizer: Tokenizer, *, bos_token: str | None = None) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self.tokenizer = tokenizer
        self._segments = SegmentCache(self._encode_bare, plain_added_tokens(tokenizer.to_str()))
        self._bos = None if bos_token is None else tokenizer.token_to_id(bos_token)

    @classmethod
    def from_bytes(cls, data: bytes, *, bos_token: str | None = None) -> Tokenization:
        """From the bytes of a tokenizer.json.

        Raises:
            CardError: they are not a tokenizer.
        """
        try:
            return cls(Tokenizer.from_str(data.decode()), bos_token=bos_token)
        except Exception as error:  # tokenizers raises bare Exception
            raise CardError(f"tokenizer.json is not a tokenizer: {error}") from error

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`.

        `add_special_tokens` adds what the tokenizer puts around a text (BOS, ...): True for a raw prompt, False for
        a rendered chat, whose template writes its own. A BOS that the text already starts with is not doubled.
        """
        if not add_special_tokens:
            return self._segments.encode(text)
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=True).ids
        if self._bos is not None and ids[:2] == [self._bos, self._bos]:
            return ids[1:]
        return ids

    def _encode_bare(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def knows(self, text: str) -> bool:
        """Whether `encode` without special tokens takes no time worth a thread."""
        return self._segments.knows(text)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Text of `ids`; unknown ids spell nothing."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))


def is_long(text: str) -> bool:
    """Whether to tokenize it off the event loop."""
    return len(text) > LONG_CHARS
