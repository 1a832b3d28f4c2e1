"""Settings of the cache service."""

from __future__ import annotations

from pathlib import Path

import redis.asyncio
from pydantic import Field, field_validator, model_validator

from services.common.settings import Port, ServiceSettings

ENTRY_OVERHEAD_BYTES = 512
"""What an entry costs beside its key and value (objects, links, heap), 436 on CPython 3.11, rounded up."""


class CacheSettings(ServiceSettings):
    """What the cache service needs to know."""

    port: Port = 0
    """gRPC port; 0 = any free one."""
    cache_bytes_max: int = Field(default=256 * 1024 * 1024, ge=1024 * 1024, le=1 << 40)
    """Bytes that all entries together may take; the least recently used go first."""
    cache_value_bytes_max: int = Field(default=4 * 1024 * 1024, ge=1024, le=15 * 1024 * 1024)
    """Bytes of the largest value that is accepted."""
    cache_ttl_s: int = Field(default=3600, ge=1, le=30 * 86_400)
    """Seconds that an entry lives when the writer asks for no lifetime of its own."""
    cache_ttl_s_max: int = Field(default=86_400, ge=1, le=30 * 86_400)
    """Longest lifetime in seconds that a writer may ask for."""

    redis: str = ""
    """Redis as the tier that all cache services share: redis://, rediss:// or unix:// URL; empty = none."""
    redis_timeout_s: float = Field(default=0.08, gt=0, le=10)
    """Seconds that Redis has for an answer; after that the look-up is a miss (gateways wait 0.1 s for a whole one)."""
    disk: Path | None = None
    """Directory of the disk tier, of this process alone; empty = none."""
    disk_bytes_max: int = Field(default=4 * 1024 * 1024 * 1024, ge=1024 * 1024, le=1 << 44)
    """Bytes that the disk tier may take; the least recently used go first."""

    @field_validator("redis")
    @classmethod
    def _is_a_url(cls, value: str) -> str:
        if value:
            redis.asyncio.connection.parse_url(value)  # raises ValueError with the schemes that there are
        return value

    @field_validator("disk", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        return value or None

    @model_validator(mode="after")
    def _consistent(self) -> CacheSettings:
        if self.cache_ttl_s > self.cache_ttl_s_max:
            raise ValueError("PENSTOCK_CACHE_TTL_S is longer than PENSTOCK_CACHE_TTL_S_MAX")
        if self.cache_value_bytes_max + 64 + ENTRY_OVERHEAD_BYTES > self.cache_bytes_max:
            raise ValueError("PENSTOCK_CACHE_VALUE_BYTES_MAX does not fit into PENSTOCK_CACHE_BYTES_MAX")
        return self
