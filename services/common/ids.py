"""Identities. Everything that may arrive late carries one (DESIGN 2.4)."""

from __future__ import annotations

import re
import secrets

_TRACEPARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?")
_REQUEST_ID_CHARS_MAX = 128


def new_incarnation() -> int:
    """64 random bits, never 0: new for each start of a process."""
    return secrets.randbits(64) or 1


def new_response_id(prefix: str) -> str:
    """`prefix-` and 96 random bits in hex, e.g. `chatcmpl-5f0c…`."""
    return f"{prefix}-{secrets.token_hex(12)}"


def new_request_id() -> str:
    """For a request that came without `x-request-id`."""
    return f"req-{secrets.token_hex(8)}"


def request_id_of(given: str | None) -> str:
    """The caller's `x-request-id` when it is short printable ASCII, else a new one."""
    if given and len(given) <= _REQUEST_ID_CHARS_MAX and given.isascii() and given.isprintable():
        return given
    return new_request_id()


def trace_id_of(traceparent: str | None) -> str:
    """The trace id of a `traceparent` header (W3C Trace Context, 3.2), 32 hex digits; empty when there is none."""
    found = _TRACEPARENT.fullmatch(traceparent) if traceparent else None
    return found.group(1) if found else ""
