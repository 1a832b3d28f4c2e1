"""The process table: what runs, what should, and when to try again. Pure: every method takes the time in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

BACKOFF_S_MIN = 0.5
BACKOFF_S_MAX = 10.0
STABLE_S = 60.0
"""A process that lived this long starts over with the shortest backoff."""
FAILED_STARTS_MAX = 3
"""Ends in a row before it was ever healthy, after which it is given up."""


class Health(StrEnum):
    """What `penstock status` says of a process."""

    DOWN = "down"
    STARTING = "starting"
    SERVING = "serving"
    NOT_SERVING = "not_serving"


@dataclass(frozen=True, slots=True)
class Restart:
    """Start it again after `after_s` seconds."""

    after_s: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """It never worked: starting it again is no use."""


@dataclass(slots=True)
class Row:
    """One process."""

    name: str
    health: Health = Health.DOWN
    pid: int | None = None
    since: float = 0.0
    """When it got its health."""
    started_at: float = 0.0
    restarts: int = 0
    """Ends that nobody asked for."""
    was_healthy: bool = False
    """Ever, in any of its lives."""
    failures: int = 0
    """Ends in a row without a stable life between them."""


class ProcessTable:
    """The rows by name, and the rules of their change."""

    def __init__(self, names: Iterable[str]) -> None:
        self._rows = {name: Row(name) for name in names}

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def __getitem__(self, name: str) -> Row:
        return self._rows[name]

    def started(self, name: str, pid: int, now: float) -> None:
        """A process was spawned."""
        row = self._rows[name]
        row.pid, row.started_at = pid, now
        _set(row, Health.STARTING, now)

    def probed(self, name: str, healthy: bool, now: float) -> bool:
        """The answer of a health check; whether it changed anything."""
        row = self._rows[name]
        if row.pid is None:
            return False  # the answer of a process that has ended since
        if healthy:
            row.was_healthy = True
            return _set(row, Health.SERVING, now)
        return row.health is Health.SERVING and _set(row, Health.NOT_SERVING, now)

    def exited(self, name: str, now: float) -> Restart | GiveUp:
        """It ended though it should run: what to do."""
        row = self._rows[name]
        if now - row.started_at >= STABLE_S:
            row.failures = 0
        row.failures += 1
        row.restarts += 1
        self._down(row, now)
        if not row.was_healthy and row.failures >= FAILED_STARTS_MAX:
            return GiveUp()
        return Restart(min(BACKOFF_S_MAX, BACKOFF_S_MIN * 2 ** min(row.failures - 1, 10)))

    def stopped(self, name: str, now: float) -> None:
        """It ended because it was told to."""
        self._down(self._rows[name], now)

    def all_serving(self) -> bool:
        """The mesh is up."""
        return all(row.health is Health.SERVING for row in self)

    @staticmethod
    def _down(row: Row, now: float) -> None:
        row.pid = None
        _set(row, Health.DOWN, now)


def _set(row: Row, health: Health, now: float) -> bool:
    if row.health is health:
        return False
    row.health, row.since = health, now
    return True
