"""What the state machine knows of engines, and how it audits classes and tenants."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

from services.router.workers import Report

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.router.bands import Bands
    from services.router.lane import Lane
    from services.router.requests import Request


Key = tuple[int, int]
"""Gateway and number of a request."""


@dataclass
class Engine:
    """What really runs on a worker."""

    max_sequences: int
    kv_blocks: int
    running: dict[int, int] = field(default_factory=dict)  # lease -> choices
    started: list[int] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    foreign: int = 0

    def report(self) -> Report:
        """Its load, and the changes since the last report."""
        sequences = sum(self.running.values()) + self.foreign
        report = Report(
            running=min(sequences, self.max_sequences),
            waiting=max(0, sequences - self.max_sequences),
            free_blocks=max(0, self.kv_blocks - sequences),
            queued_prefill_tokens=7 * len(self.started),
            leases_started=tuple(self.started),
            leases_ended=tuple(self.ended),
            steps=((5.0 + sequences, 7 * len(self.started), sequences),),
        )
        self.started, self.ended = [], []
        return report


@dataclass
class Grant:
    """A lease as the test knows it. `over`: the engine said that it ended; `lost`: its worker is gone."""

    key: Key
    incarnation: int
    choices: int
    blocks: int
    over: bool = False
    lost: bool = False


def check_bands(bands: Bands, now: float, waiting: Sequence[Request], granted: Sequence[tuple[Request, bool]]) -> None:
    """All waiting requests have a turn, and the counts are those of the requests. `granted`: (request, lost)."""
    held = [0, 0, 0]
    for request, lost in granted:
        held[request.band] += 0 if lost else request.choices
    assert bands.held == held
    assert sorted(map(id, bands)) == sorted(map(id, waiting))
    assert sorted(id(request) for request, _ in bands.walk(now)) == sorted(map(id, waiting))
    for band, lane in enumerate(bands.lanes):
        _check_lane(
            lane,
            [request for request in waiting if request.band == band],
            [request for request, _ in granted if request.band == band],
        )


def _check_lane(lane: Lane, waiting: Sequence[Request], granted: Sequence[Request]) -> None:
    assert lane.count == len(waiting)
    assert lane.tokens == sum(request.tokens for request in waiting)
    assert lane.accounts.active == sorted(lane.accounts.active, key=lambda entry: entry[:3])
    for tenant, account in lane.accounts._by_tenant.items():
        assert account.counter >= 0.0
        assert account.waits == bool(account.queue)
        assert account.queue.cost == pytest.approx(sum(request.cost for request in account.queue))
        assert account.leases == sum(request.tenant == tenant for request in granted)
        assert not account.idle or account.parked, "an idle tenant without debts is forgotten"
