"""Remembers the tokens of text between added tokens (`<|im_start|>` and the like), for prompts that come again.

A system prompt of 10,000 tokens takes about 10 ms to encode, every time. BPE has no prefix property, so a cached
beginning can't be continued in general. But an added token splits the text before anything else looks at it: what
stands between two of them is normalized, pre-tokenized and merged on its own, provided that no part of the tokenizer
looks at where a piece stands (a prefix space for the first one, say) or reaches around the added token (`lstrip`).
`plain_added_tokens` says whether that holds; where it doesn't, whole texts are remembered.
"""

from __future__ import annotations

import json
import re
import threading
from array import array
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CHARS_MIN = 256
"""A shorter piece is encoded in less time than its look-up is worth."""
BYTES_MAX = 32 * 1024 * 1024
"""Bound on what one model's pieces take, text and tokens."""
PIECE_BYTES_MAX = BYTES_MAX // 8
ENTRY_BYTES = 256
"""What an entry costs beside its text and tokens."""
_NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD"}
_PRE_TOKENIZERS = {"Digits", "Split", "ByteLevel", "Whitespace", "WhitespaceSplit", "Punctuation"}


class SegmentCache:
    """Encodes like the tokenizer it wraps, faster when it has seen the pieces before. Thread-safe.

    Args:
        encode: token ids of a text, without anything put around it.
        added: added tokens at which texts may be cut, with their ids; empty = not at all.
    """

    def __init__(
        self, encode: Callable[[str], list[int]], added: Mapping[str, int], *, bytes_max: int = BYTES_MAX
    ) -> None:
        self._encode = encode
        self._added = added
        longest_first = sorted(added, key=len, reverse=True)
        self._cut = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if added else None
        self._bytes_max = bytes_max
        self._pieces: OrderedDict[str, array[int]] = OrderedDict()
        self._lock = threading.Lock()
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._pieces)

    def knows(self, text: str) -> bool:
        """Whether all that is long in `text` is remembered, so that encoding it takes microseconds."""
        return all(
            len(piece) < CHARS_MIN or piece in self._pieces or piece in self._added for piece in self._split(text)
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`."""
        ids: list[int] = []
        for piece in self._split(text):
            token = self._added.get(piece)
            if token is not None:
                ids.append(token)
            else:
                ids.extend(self._piece(piece))
        return ids

    def _split(self, text: str) -> Iterator[str]:
        return filter(None, self._cut.split(text)) if self._cut is not None else iter((text,))

    def _piece(self, piece: str) -> list[int] | array[int]:
        if len(piece) < CHARS_MIN:
            return self._encode(piece)
        with self._lock:
            known = self._pieces.get(piece)
            if known is not None:
                self._pieces.move_to_end(piece)
                return known
        ids = self._encode(piece)
        self._remember(piece, array("I", ids))
        return ids

    def _remember(self, piece: str, ids: array[int]) -> None:
        cost = _cost(piece, ids)
        if cost > min(PIECE_BYTES_MAX, self._bytes_max):
            return
        with self._lock:
            if piece in self._pieces:
                return
            self._pieces[piece] = ids
            self.bytes += cost
            while self.bytes > self._bytes_max:
                self.bytes -= _cost(*self._pieces.popitem(last=False))


def _cost(piece: str, ids: array[int]) -> int:
    return 4 * len(piece) + ids.itemsize * len(ids) + ENTRY_BYTES


def plain_added_tokens(tokenizer_json: str) -> dict[str, int]:
    """The added tokens of a `tokenizer.json` with their ids; empty when cutting there might change the result."""
    spec = json.loads(tokenizer_json)
    added = spec.get("added_tokens") or []
    if any(token["normalized"] or token["lstrip"] or token["rstrip"] or token["single_word"] for token in added):
        return {}
    normalizers, pre_tokenizers = _parts(spec.get("normalizer")), _parts(spec.get("pre_tokenizer"))
    if any(part["type"] not in _NORMALIZERS for part in normalizers):
        return {}
    if any(part["type"] not in _PRE_TOKENIZERS or part.get("add_prefix_space") for part in pre_tokenizers):
        return {}
    return {token["content"]: token["id"] for token in added if token["content"]}


def _parts(part: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if part is None:
        return []
    if part["type"] == "Sequence":
        inner = part.get("pretokenizers") or part.get("normalizers") or []
        return [leaf for each in inner for leaf in _parts(each)]
    return [part]
