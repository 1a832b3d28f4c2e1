"""What a request to the cache may ask for. Pure: takes the request's fields, raises the client's error."""

from __future__ import annotations

from dataclasses import dataclass

from services.common.errors import InvalidRequestError

KEY_BYTES_MIN = 16
KEY_BYTES_MAX = 64
OWNER_BYTES_MAX = 64
LEASE_MS_MAX = 60_000
WAIT_MS_MAX = 300_000
RENEWALS_MAX = 4096


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


def check_owner(owner: bytes) -> None:
    """Refuse an owner that is none, or too long a name.

    Raises:
        InvalidRequestError: names `owner`.
    """
    if not 0 < len(owner) <= OWNER_BYTES_MAX:
        raise InvalidRequestError(f"owner has {len(owner)} bytes, it takes 1 to {OWNER_BYTES_MAX}", param="owner")


def lease_s(lease_ms: int) -> float:
    """Seconds of a lease.

    Raises:
        InvalidRequestError: names `lease_ms`.
    """
    if not 0 < lease_ms <= LEASE_MS_MAX:
        raise InvalidRequestError(f"lease_ms is {lease_ms}, it takes 1 to {LEASE_MS_MAX}", param="lease_ms")
    return lease_ms / 1000


def wait_s(wait_ms: int) -> float:
    """Seconds to hold a call.

    Raises:
        InvalidRequestError: names `wait_ms`.
    """
    if wait_ms > WAIT_MS_MAX:
        raise InvalidRequestError(f"wait_ms is {wait_ms}, the most is {WAIT_MS_MAX}", param="wait_ms")
    return wait_ms / 1000
