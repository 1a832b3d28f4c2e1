"""What the simulator says: pure functions of the original prompt, the seed, the choice and the token's index.

So a stream that moved to another worker goes on identically, and any lost, repeated or reordered token shows.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

BLOCK = 256
"""Tokens that are computed at once."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31 = np.uint64(30), np.uint64(27), np.uint64(31)


def answer_key(prompt: npt.NDArray[np.uint32], seed: int | None, choice: int) -> int:
    """64 bits that stand for one answer. `prompt` is the original one, without produced tokens."""
    digest = blake2b(np.ascontiguousarray(prompt, dtype="<u4").tobytes(), digest_size=8, person=b"penstock-sim")
    digest.update(f"{0 if seed is None else seed}/{choice}".encode())
    return int.from_bytes(digest.digest(), "little")


def splitmix(key: int, first: int, count: int) -> npt.NDArray[np.uint64]:
    """Outputs `first` to `first + count` of SplitMix64 seeded with `key` (Steele et al., OOPSLA 2014)."""
    with np.errstate(over="ignore"):
        z = np.uint64(key) + (np.arange(first + 1, first + count + 1, dtype=np.uint64)) * _GOLDEN
        z = (z ^ (z >> _S30)) * _MIX1
        z = (z ^ (z >> _S27)) * _MIX2
        return z ^ (z >> _S31)


def answer_tokens(key: int, first: int, count: int, vocabulary: npt.NDArray[np.uint32]) -> list[int]:
    """Tokens `first` to `first + count` of the answer, drawn from `vocabulary`."""
    picks = splitmix(key, first, count) % np.uint64(len(vocabulary))
    return [int(token) for token in vocabulary[picks]]


def natural_length(key: int) -> int:
    """Tokens after which the answer ends by itself: 16 to 256."""
    return 16 + key % 241


def logprobs(
    key: int, index: int, token: int, top: int, vocabulary: Sequence[int]
) -> tuple[float, list[tuple[int, float]]]:
    """A made-up log probability of token `index` (-2 to 0) and `top` alternatives: the token itself, then others
    of the vocabulary, each less likely by 1."""  # fmt: skip
    chosen = -2.0 * ((key >> 8) + index * 37 & 0xFF) / 255.0
    others = [vocabulary[(token + 1 + i) % len(vocabulary)] for i in range(top)]
    alternatives = [(token, chosen)]
    alternatives += [(other, chosen - 1.0 - i) for i, other in enumerate(o for o in others if o != token)]
    return chosen, alternatives[:top]
