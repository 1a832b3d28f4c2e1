"""Errors in OpenAI's shape."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import orjson

from services.common.errors import status_of

if TYPE_CHECKING:
    from services.common.errors import PenstockError


def error_body(error: PenstockError, request_id: str | None) -> bytes:
    """`{"error": {"message", "type", "param", "code", "request_id"}}`; also the payload of an error inside a stream."""
    body = {
        "message": error.message,
        "type": status_of(error).openai_type,
        "param": error.param,
        "code": error.code,
    }
    if request_id:
        body["request_id"] = request_id
    return orjson.dumps({"error": body})


def error_headers(error: PenstockError, request_id: str | None) -> dict[str, str]:
    """Headers that go with it: `Retry-After` in whole seconds, rounded up, and `x-request-id`."""
    headers = {"x-request-id": request_id} if request_id else {}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return headers
