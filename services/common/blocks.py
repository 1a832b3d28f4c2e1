"""Names of prefix blocks: a keyed hash chain over 16-token blocks, the same in every process and on every machine.

Block i's hash covers the model version, the adapter, the tenant's salt, and all tokens up to its end, so equal hashes
mean equal KV content (up to the engine's numerics). Gateways hash prompts, workers hash what their engine reports as
cached, routers compare; nobody sends tokens for that.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

BLOCK_TOKENS = 16
HASH_BYTES = 16


def root(version: str, lora: str = "", salt: str = "") -> bytes:
    """What a chain starts from: 16 bytes.

    Args:
        version: `CardMeta.version`, the hash of what shapes the weights.
        lora: name of the adapter; empty = the base model.
        salt: the tenant's isolation salt; empty = shared.
    """
    digest = blake2b(digest_size=HASH_BYTES, person=b"penstock-blocks")
    for part in (version, lora, salt):
        data = part.encode()
        digest.update(len(data).to_bytes(4, "little") + data)
    return digest.digest()


def chain(parent: bytes, tokens: Sequence[int]) -> bytes:
    """Hashes of the whole blocks of `tokens`, 16 bytes each, in order; what doesn't fill a block is left out.

    Args:
        parent: `root(...)`, or the hash of the block before.
        tokens: token ids below 2**32.
    """
    whole = len(tokens) // BLOCK_TOKENS
    data = np.asarray(tokens[: whole * BLOCK_TOKENS], dtype="<u4").tobytes()
    size = BLOCK_TOKENS * 4
    hashes = []
    for start in range(0, whole * size, size):
        parent = blake2b(data[start : start + size], digest_size=HASH_BYTES, key=parent).digest()
        hashes.append(parent)
    return b"".join(hashes)


def split(hashes: bytes) -> list[bytes]:
    """The hashes one by one.

    Raises:
        ValueError: the length is not a multiple of 16.
    """
    if len(hashes) % HASH_BYTES:
        raise ValueError(f"block hashes have {len(hashes)} bytes, not a multiple of {HASH_BYTES}")
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]
