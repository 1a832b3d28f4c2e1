"""What a request to the cache may ask for. Pure: takes the request's fields, raises the client's error."""

from __future__ import annotations

from dataclasses import dataclass

from services.common.errors import InvalidRequestError

KEY_BYTES_MIN = 16
KEY_BYTES_MAX = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds of one service."""

    value_bytes_max: int
    ttl_s: int
    """Lifetime of an entry whose writer asks for none."""
    ttl_s_max: int

    def check_value(self, value: bytes) -> None:
        """Refuse a value over the bound.

        Raises:
            InvalidRequestError: names `value`.
        """
        if len(value) > self.value_bytes_max:
            raise InvalidRequestError(
                f"value has {len(value)} bytes, the most is {self.value_bytes_max}", param="value"
            )

    def lifetime_s(self, ttl_s: int) -> int:
        """Seconds to keep an entry for; 0 asks for the default.

        Raises:
            InvalidRequestError: names `ttl_s`.
        """
        if ttl_s > self.ttl_s_max:
            raise InvalidRequestError(f"ttl_s is {ttl_s}, the most is {self.ttl_s_max}", param="ttl_s")
        return ttl_s or self.ttl_s


def check_key(key: bytes) -> None:
    """Refuse a key that is no hash.

    Raises:
        InvalidRequestError: names `key`.
    """
    if not KEY_BYTES_MIN <= len(key) <= KEY_BYTES_MAX:
        raise InvalidRequestError(f"key has {len(key)} bytes, it takes {KEY_BYTES_MIN} to {KEY_BYTES_MAX}", param="key")
