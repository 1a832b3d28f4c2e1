"""Identities. Everything that may arrive late carries one (DESIGN 2.4)."""

from __future__ import annotations

import secrets


def new_incarnation() -> int:
    """64 random bits, never 0: new for each start of a process."""
    return secrets.randbits(64) or 1


def new_response_id(prefix: str) -> str:
    """`prefix-` and 96 random bits in hex, e.g. `chatcmpl-5f0c…`."""
    return f"{prefix}-{secrets.token_hex(12)}"


def new_request_id() -> str:
    """For a request that came without `x-request-id`."""
    return f"req-{secrets.token_hex(8)}"
