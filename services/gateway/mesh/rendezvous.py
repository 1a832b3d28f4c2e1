"""Which router serves a model: rendezvous hashing (Thaler and Ravishankar, 1998) over the live ones.

Every gateway with the same list of live routers picks the same one, and a router's loss moves only its own models.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def score(model: str, router: str) -> int:
    """64-bit weight of `router` for `model`."""
    return int.from_bytes(blake2b(f"{router}\0{model}".encode(), digest_size=8).digest())


def choose(model: str, routers: Iterable[str]) -> str | None:
    """The router with the highest score for `model`; None when there is none."""
    return max(routers, key=lambda router: (score(model, router), router), default=None)
