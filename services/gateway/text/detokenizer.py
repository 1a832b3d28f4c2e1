"""Incremental detokenization that never emits half a character.

For any split of `ids` into pushes, the concatenation of `push()` and `flush()` equals
`tokenizer.decode(ids, skip_special_tokens=True)`, and what is out after k tokens depends on those k ids alone.

Byte-level tokenizers (GPT-2, Llama 3, Qwen) decode through a table of token bytes and an incremental UTF-8 decoder. All
others (SentencePiece, WordPiece) go through `windowed.py`.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from codecs import utf_8_decode
from typing import TYPE_CHECKING, Any

from services.gateway.text.windowed import Pieces, WindowedDetokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Protocol

    from tokenizers import Tokenizer

    class Detokenizer(Protocol):
        """The text of one choice, token by token."""

        def push(self, tokens: Sequence[int]) -> str:
            """The text that these tokens make certain; "" while a character is incomplete."""

        def flush(self) -> str:
            """At the end: what was held back, with U+FFFD for broken bytes. The detokenizer is then empty."""


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte, as in GPT-2: printable bytes stand for themselves, the others are moved past U+00FF."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = [byte for byte in range(256) if byte not in plain]
    return {chr(byte): byte for byte in plain} | {chr(256 + i): byte for i, byte in enumerate(moved)}


_BYTE_OF = _byte_alphabet()


def _token_bytes(content: str) -> bytes:
    """Bytes of one token. Content outside the byte alphabet (an added token) is taken as it is written."""
    try:
        return bytes([_BYTE_OF[char] for char in content])
    except KeyError:
        return content.encode()


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    """Whether the decoder of a tokenizer.json does nothing but undo the byte alphabet."""
    if decoder is None:
        return False
    if decoder["type"] == "Sequence":
        steps = [step for step in decoder["decoders"] if step["type"] != "Fuse"]
        return len(steps) == 1 and _is_byte_level(steps[0])
    return bool(decoder["type"] == "ByteLevel")


class Vocabulary(ABC):
    """What the tokens of one model card spell. Immutable, shared by all requests."""

    @classmethod
    def from_tokenizer(cls, tokenizer: Tokenizer, *, vocab_size: int) -> Vocabulary:
        """Build the table; ids from `vocab_size` on, and ids that the tokenizer doesn't know, spell nothing."""
        parts = json.loads(tokenizer.to_str())
        special = {token["id"] for token in parts["added_tokens"] if token["special"]}
        if _is_byte_level(parts["decoder"]):
            return _ByteLevelVocabulary(tokenizer, special, vocab_size)
        return _WindowedVocabulary(Pieces.of(tokenizer, parts["decoder"], special, vocab_size))

    @abstractmethod
    def detokenizer(self, prompt_tail: Sequence[int] = ()) -> Detokenizer:
        """A fresh detokenizer, one per choice.

        `prompt_tail` (a few last ids of the prompt) makes the text continue the prompt: half a character that the
        prompt ended in is completed, a leading space that SentencePiece drops at a start is kept.
        """

    @abstractmethod
    def token_text(self, token: int) -> str:
        """Text of one token, special or not, as logprobs show it; U+FFFD where it is not whole characters."""

    @abstractmethod
    def token_bytes(self, token: int) -> list[int]:
        """UTF-8 bytes of one token, also when it is only a part of a character."""


class _ByteLevelVocabulary(Vocabulary):
    def __init__(self, tokenizer: Tokenizer, special: set[int], vocab_size: int) -> None:
        contents = [tokenizer.id_to_token(token) for token in range(vocab_size)]
        self._shown = {token: contents[token] or "" for token in special if token < vocab_size}
        self._pieces = [
            _piece("" if content is None or token in special else content) for token, content in enumerate(contents)
        ]

    def detokenizer(self, prompt_tail: Sequence[int] = ()) -> Detokenizer:
        detokenizer = ByteLevelDetokenizer(self._pieces)
        detokenizer.push(prompt_tail)
        return detokenizer

    def token_text(self, token: int) -> str:
        return self._bytes(token).decode(errors="replace")

    def token_bytes(self, token: int) -> list[int]:
        return list(self._bytes(token))

    def _bytes(self, token: int) -> bytes:
        if token in self._shown:
            return self._shown[token].encode()
        piece = self._pieces[token] if token < len(self._pieces) else ""
        return piece.encode() if isinstance(piece, str) else piece


def _piece(content: str) -> str | bytes:
    """Text when the token is whole characters, its bytes when it is not."""
    data = _token_bytes(content)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


class ByteLevelDetokenizer:
    """Whole-character tokens with nothing pending are one table look-up; the rest runs through a UTF-8 decoder."""

    __slots__ = ("_pending", "_pieces", "_size")

    def __init__(self, pieces: list[str | bytes]) -> None:
        self._pieces = pieces
        self._size = len(pieces)
        self._pending = b""

    def push(self, tokens: Sequence[int]) -> str:
        if len(tokens) == 1 and not self._pending:
            token = tokens[0]
            if token >= self._size:
                return ""
            piece = self._pieces[token]
            if piece.__class__ is str:
                return piece
        return self._push_bytes(tokens)

    def _push_bytes(self, tokens: Sequence[int]) -> str:
        data = self._pending
        for token in tokens:
            if token < self._size:
                piece = self._pieces[token]
                data += piece.encode() if isinstance(piece, str) else piece
        text, used = utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def flush(self) -> str:
        text = self._pending.decode(errors="replace")
        self._pending = b""
        return text


class _WindowedVocabulary(Vocabulary):
    def __init__(self, pieces: Pieces) -> None:
        self._pieces = pieces

    def detokenizer(self, prompt_tail: Sequence[int] = ()) -> Detokenizer:
        return WindowedDetokenizer(self._pieces, prompt_tail)

    def token_text(self, token: int) -> str:
        return self._pieces.bytes_of(token).decode(errors="replace")

    def token_bytes(self, token: int) -> list[int]:
        return list(self._pieces.bytes_of(token))
