"""Names of a prompt's blocks for the router, so that it finds the worker that has them cached."""

from __future__ import annotations

import asyncio
from hashlib import blake2b
from typing import TYPE_CHECKING

from services.common.blocks import BLOCK_TOKENS, HASH_BYTES, chain, root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.common.tenants import Tenant
    from services.gateway.generation.job import Job

LONG_TOKENS = 8_192
"""From here on hashing takes a millisecond: it goes to a thread."""


async def block_hashes(job: Job) -> bytes:
    """Hashes of the prompt's whole 16-token blocks, 16 bytes each, in order."""
    return await _chain(root(job.text.meta.version, job.lora, job.tenant.isolation_salt), job.prompt)


async def continued(hashes: bytes, job: Job, produced: Sequence[int]) -> bytes:
    """The same for the prompt and the tokens `produced` after it, given the prompt's `hashes`."""
    done = len(hashes) // HASH_BYTES * BLOCK_TOKENS
    parent = hashes[-HASH_BYTES:] or root(job.text.meta.version, job.lora, job.tenant.isolation_salt)
    return hashes + await _chain(parent, [*job.prompt[done:], *produced])


async def _chain(parent: bytes, tokens: Sequence[int]) -> bytes:
    if len(tokens) >= LONG_TOKENS:
        return await asyncio.to_thread(chain, parent, tokens)
    return chain(parent, tokens)


def session_key(tenant: Tenant, name: str) -> str:
    """What routers know a conversation by: it doesn't tell the client's name for it. Empty = none."""
    if not name:
        return ""
    data = f"{tenant.id}\0{name}".encode(errors="surrogatepass")  # a header may hold any bytes
    return blake2b(data, digest_size=8, person=b"penstock-sess").hexdigest()
