"""Settings: one frozen object per service, read once at start from flags and `PENSTOCK_*` variables.

A flag wins over a variable, a variable over the default. A wrong value stops the start with the setting's name.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

from pydantic import BeforeValidator, Field, ValidationError
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

if TYPE_CHECKING:
    from collections.abc import Sequence

Port = Annotated[int, Field(ge=0, le=65_535)]


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


Addresses = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""`host:port` addresses, comma-separated in flags and variables."""


class ServiceSettings(BaseSettings):
    """What every service has."""

    model_config = SettingsConfigDict(
        env_prefix="PENSTOCK_", frozen=True, extra="forbid", cli_kebab_case=True, cli_hide_none_type=True,
        cli_avoid_json=True, env_parse_none_str="none", cli_implicit_flags=True, use_attribute_docstrings=True,
    )  # fmt: skip

    name: str = Field(default="", pattern=r"^[a-z0-9-]{0,63}$")
    """Name of this process in logs and metrics; empty = its role."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""
    drain_s: float = Field(default=30.0, ge=0, le=3600)
    """Seconds that running work gets to end after SIGTERM before it is cut."""
    announce: str = ""
    """File to which the process writes its pid and addresses once it listens; empty = none."""


S = TypeVar("S", bound=ServiceSettings)


def load(kind: type[S], argv: Sequence[str], *, prog: str) -> S:
    """Read `kind` from `argv` and the environment.

    Raises:
        SystemExit: code 2, after naming each wrong setting (flag and variable) on stderr; code 0 after `--help`.
    """
    try:
        return kind(_cli_parse_args=list(argv), _cli_prog_name=prog)
    except ValidationError as error:
        for item in error.errors():
            name = str(item["loc"][0]) if item["loc"] else "settings"
            flag, variable = "--" + name.replace("_", "-"), "PENSTOCK_" + name.upper()
            sys.stderr.write(f"{prog}: {variable} ({flag}): {item['msg']}, got {item['input']!r}\n")
        raise SystemExit(2) from None
