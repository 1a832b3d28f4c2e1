"""Tenants, version 1: one validated file, `tenants.yaml`, of who holds which key and with what defaults.

    tenants:
      - id: dev
        key_hashes: ["sha256:…"]        # of the API key; the key itself is nowhere
        weight: 1.0                     # share between tenants of one class
        max_class: interactive          # the most urgent class it may ask for
        isolation_salt: ""              # non-empty: shares no cached prefix with others
        response_cache: false           # default of `x-penstock-cache`
        resumable: false                # default of `x-penstock-resumable`

Keys carry at least 128 bits of entropy, so one round of SHA-256 is enough and look-up by hash leaks nothing.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

if TYPE_CHECKING:
    from pathlib import Path

PriorityClassName = Literal["interactive", "standard", "batch"]
CLASSES: tuple[PriorityClassName, ...] = ("interactive", "standard", "batch")
"""Most urgent first."""

KeyHash = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class TenantsError(ValueError):
    """The tenants file can't be used; the message says where and why."""


class Tenant(BaseModel):
    """One tenant. Field meanings stand in the module's example."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    key_hashes: tuple[KeyHash, ...] = Field(min_length=1, max_length=64)
    weight: float = Field(default=1.0, gt=0, le=1000, allow_inf_nan=False)
    max_class: PriorityClassName = "interactive"
    isolation_salt: str = Field(default="", max_length=256)
    response_cache: bool = False
    resumable: bool = False

    def clamp(self, wanted: PriorityClassName) -> PriorityClassName:
        """`wanted`, or the tenant's ceiling when that is less urgent."""
        return max(wanted, self.max_class, key=CLASSES.index)


class TenantsFile(BaseModel):
    """The whole file."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tenants: tuple[Tenant, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _unique(self) -> TenantsFile:
        ids = [tenant.id for tenant in self.tenants]
        keys = [key for tenant in self.tenants for key in tenant.key_hashes]
        if len(set(ids)) != len(ids):
            raise ValueError("two tenants have the same id")
        if len(set(keys)) != len(keys):
            raise ValueError("two tenants hold the same key")
        return self


class Tenants:
    """Look-up of a tenant by API key."""

    def __init__(self, file: TenantsFile) -> None:
        self._by_hash = {key: tenant for tenant in file.tenants for key in tenant.key_hashes}

    @classmethod
    def load(cls, path: Path) -> Tenants:
        """Read and validate `path`.

        Raises:
            TenantsError: it is not there, is not YAML, or breaks the schema; names the field.
        """
        try:
            return cls(TenantsFile.model_validate(yaml.safe_load(path.read_text(encoding="utf-8"))))
        except OSError as error:
            raise TenantsError(f"cannot read the tenants file {path}: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise TenantsError(f"the tenants file {path} is not YAML: {error}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "file"
            raise TenantsError(f"the tenants file {path}: {where}: {first['msg']}") from error

    def find(self, key: str) -> Tenant | None:
        """The tenant that holds `key`."""
        return self._by_hash.get(hash_key(key))


def hash_key(key: str) -> str:
    """How a key stands in the file."""
    return "sha256:" + hashlib.sha256(key.encode()).hexdigest()


def new_key() -> str:
    """A fresh API key: `sk-penstock-` and 192 random bits."""
    return "sk-penstock-" + secrets.token_urlsafe(24)
