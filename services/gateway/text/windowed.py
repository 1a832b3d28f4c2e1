"""Incremental detokenization for decoders that look at a token's neighbours (SentencePiece, WordPiece, ...).

Only a short window of tokens is decoded each time, and the text beyond what was already emitted is new. Two things
are uncertain until more tokens come: a last U+FFFD (it may be half a character), and a run of byte tokens like `<0xE4>`
(a ByteFallback decoder turns the *whole* run into U+FFFD when any of it is broken). A decoder that rewrites text which
spans tokens (no known model has one) is inexact here: what is out can't be taken back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenizers import Tokenizer

RUN_MAX = 256
"""Byte tokens held back at most. A run that breaks only after that many good ones is the one inexact case."""

_WINDOW_MAX = 16
"""Tokens decoded each time before the window is cut, if the text allows a cut."""
_CONTEXT = 4
"""Tokens that stay in a cut window for the decoder to look back at."""
_HELD_MAX = 256
"""Tokens after which the window is cut even inside an uncertain text."""
_REPLACEMENT = "\ufffd"


@dataclass(frozen=True, slots=True)
class Pieces:
    """A tokenizer's decoder, and which of its tokens spell what."""

    tokenizer: Tokenizer
    skipped: frozenset[int]
    """Special tokens and ids without a token."""
    byte_of: Mapping[int, int]
    """Byte tokens of a ByteFallback decoder."""
    vocab_size: int
    anchor: int | None
    """A plain token to decode others after, so that none of them stands at the start of a text."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, decoder: dict[str, Any] | None, special: set[int], vocab_size: int) -> Pieces:
        """From a tokenizer and the decoder part of its JSON."""
        contents = {token: tokenizer.id_to_token(token) for token in range(vocab_size) if token not in special}
        known = {token: content for token, content in contents.items() if content is not None}
        bytes_ = {token: _byte(content) for token, content in known.items()} if _falls_back(decoder) else {}
        return cls(
            tokenizer,
            frozenset(range(vocab_size)) - frozenset(known),
            {token: byte for token, byte in bytes_.items() if byte is not None},
            vocab_size,
            next((token for token, content in known.items() if content.isascii() and content.isalnum()), None),
        )

    def decode(self, tokens: Sequence[int]) -> str:
        """As the tokenizer does, from the start of a text."""
        return str(self.tokenizer.decode(tokens, skip_special_tokens=True))

    def bytes_of(self, token: int) -> bytes:
        """Bytes of one token inside a text."""
        if token in self.byte_of:
            return bytes([self.byte_of[token]])
        if token in self.skipped or token >= self.vocab_size:
            return (self.tokenizer.id_to_token(token) or "").encode() if token < self.vocab_size else b""
        if self.anchor is None:
            return self.decode([token]).encode()
        return self.decode([self.anchor, token]).removeprefix(self.decode([self.anchor])).encode()


def _falls_back(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    return decoder["type"] == "ByteFallback" or any(_falls_back(step) for step in decoder.get("decoders", ()))


def _byte(content: str) -> int | None:
    """0xE4 for `<0xE4>`, None for anything else."""
    if len(content) != 6 or not content.startswith("<0x") or not content.endswith(">"):
        return None
    try:
        return int(content[3:5], 16)
    except ValueError:
        return None


class WindowedDetokenizer:
    """One choice. `_window` decodes to a text of which `_sent` characters are out; `_run` are byte tokens held back."""

    __slots__ = ("_pieces", "_run", "_sent", "_window")

    def __init__(self, pieces: Pieces, prompt_tail: Sequence[int] = ()) -> None:
        self._pieces = pieces
        self._window: list[int] = []
        self._run: list[int] = []
        self._sent = 0
        self.push(prompt_tail)

    def push(self, tokens: Sequence[int]) -> str:
        return "".join([self._push(token) for token in tokens if self._spells(token)])

    def flush(self) -> str:
        self._window += self._run
        text = self._pieces.decode(self._window)[self._sent :]
        self._window, self._run, self._sent = [], [], 0
        return text

    def _spells(self, token: int) -> bool:
        return token < self._pieces.vocab_size and token not in self._pieces.skipped

    def _push(self, token: int) -> str:
        if token in self._pieces.byte_of:
            self._run.append(token)
            return self._release_run() if len(self._run) >= RUN_MAX else ""
        self._window += self._run
        self._window.append(token)
        self._run = []
        return self._emit()

    def _release_run(self) -> str:
        """Emit a long run but for a character that may be incomplete."""
        data = bytes([self._pieces.byte_of[token] for token in self._run])
        for tail in range(4):
            try:
                data[: len(data) - tail].decode()
            except UnicodeDecodeError:
                continue
            break
        else:
            tail = 0  # broken: all of it is U+FFFD whatever follows
        whole = len(self._run) - tail
        self._window += self._run[:whole]
        self._run = self._run[whole:]
        return self._emit()

    def _emit(self) -> str:
        text = self._pieces.decode(self._window)
        certain = len(text) - 1 if text.endswith(_REPLACEMENT) else len(text)
        new = text[self._sent : certain]
        self._sent = max(self._sent, certain)
        if len(self._window) >= _WINDOW_MAX:
            self._cut(text)
        return new

    def _cut(self, text: str) -> None:
        """Shorten the window where the shorter one decodes to the end of the same text."""
        unsent = len(text) - self._sent
        shorter = self._window[-_CONTEXT:]
        tail = self._pieces.decode(shorter)
        if (text.endswith(tail) and len(tail) > unsent) or len(self._window) >= _HELD_MAX:
            self._window = shorter
            self._sent = max(0, len(tail) - unsent)
