"""All that waits for one model, and what its classes hold: whose turn it is, and what is kept for whom.

Classes are strict bands: `interactive` before `standard` before `batch`. Two things bend that, both bounded:

- a class has a *floor*, a share. While it waits and holds less than that of all sequences held, it goes first. While it
  had a request in the last `demand_s` seconds, the classes below leave it that share of all sequences that there are.
- a class whose oldest request has waited over its bound stands as one tenant, of weight `promoted_weight`, in the class
  above, until it has no such request. So it always moves, and a flood of old work takes a share and not everything.
"""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING

from services.router.lane import Lane, Turn

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from services.router.config import SchedulerConfig
    from services.router.requests import Lease, Request
    from services.router.workers import Worker

BANDS = 3


class Bands:
    """One model. Bands are numbered from 0, the most urgent."""

    def __init__(self, config: SchedulerConfig) -> None:
        self._config = config
        self.lanes: list[Lane] = []
        for _ in range(BANDS):
            self.lanes.append(Lane(config, self.lanes[-1] if self.lanes else None))
        self.leases: list[dict[int, Lease]] = [{} for _ in range(BANDS)]
        """Held by each class, the oldest first."""
        self.asked: dict[int, Lease] = {}
        """Those that a gateway was asked to give back, and that it hasn't answered for."""
        self.held = [0] * BANDS
        """Their sequences."""
        self.floors = [0] * BANDS
        """Sequences kept for each."""

    def __len__(self) -> int:
        return sum([lane.count for lane in self.lanes])

    def __iter__(self) -> Iterator[Request]:
        for lane in self.lanes:
            yield from lane

    @property
    def tokens(self) -> int:
        """Prompt and answer tokens of all that wait."""
        return sum([lane.tokens for lane in self.lanes])

    def resize(self, sequences: int) -> None:
        """The model's workers can run so many."""
        self.floors = [int(share * sequences) for share in self._config.floors]

    def hold(self, lease: Lease) -> None:
        """A lease was granted, or found again."""
        band = lease.request.band
        if lease.id not in self.leases[band]:
            self.leases[band][lease.id] = lease
            self.held[band] += lease.sequences

    def unhold(self, lease: Lease) -> None:
        """A lease is over, or lost."""
        band = lease.request.band
        if self.leases[band].pop(lease.id, None) is not None:
            self.held[band] -= lease.sequences
            self.asked.pop(lease.id, None)

    def lacks(self, band: int) -> int:
        """Sequences that a class holds less than its share of all that are held.

        Of those that are held, not of those that there could be: where prefill is the limit, few of the slots are ever
        taken, and the first twentieth of them would all be batch.
        """
        return int(self._config.floors[band] * sum(self.held)) - self.held[band]

    def kept_from(self, now: float, band: int) -> int:
        """Free sequences that a class must leave to those above it, unless it holds less than its own floor."""
        kept = 0
        for above in range(band):
            lane = self.lanes[above]
            if lane.count or now - lane.asked_at < self._config.demand_s:
                kept += max(self.floors[above] - self.held[above], 0)
        return kept

    def spare(self, now: float, band: int, workers: Collection[Worker]) -> int | None:
        """Sequences that a class may take now; None = all there are. `workers`: those with any room."""
        kept = self.kept_from(now, band)
        if not kept:
            return None
        return max(sum([worker.free_sequences for worker in workers]) - kept, self.lacks(band), 0)

    def goes_at_once(self, now: float, band: int) -> bool:
        """Whether a new request of this class is before everybody who waits."""
        for number, lane in enumerate(self.lanes):
            if not lane.count:
                continue
            if number <= band or self.lacks(number) > 0 or lane.starved(now, self._config.promote_after_s[number]):
                return False
        return True

    def walk(self, now: float, closed: Collection[int] = ()) -> Iterator[Turn]:
        """All that wait, in the order of their turns, without the `closed` classes."""
        lanes = self.lanes
        for band in range(1, BANDS):
            lanes[band].promote(now, self._config.promote_after_s[band])
        walks: list[Iterator[Turn]] = []
        below: Iterator[Turn] = iter(())
        for band in reversed(range(BANDS)):
            # What stands in a closed class of the one below still has its turns, in its own place.
            below = iter(()) if band in closed else lanes[band].walk(below)
            walks.append(below)
        walks.reverse()
        first = [
            islice(walks[band], self.lacks(band))
            for band in range(1, BANDS)
            if lanes[band].count and self.lacks(band) > 0
        ]
        return chain(*first, *walks)

    def ahead(self, request: Request) -> int:
        """About how many will be granted before a request that waits or is about to."""
        band = request.band
        return sum([lane.count for lane in self.lanes[:band]]) + self.lanes[band].ahead(request)
