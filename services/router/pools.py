"""One model: the workers that serve it, and the requests that wait for them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.router.bands import Bands
from services.router.lengths import LengthPools

if TYPE_CHECKING:
    from services.router.config import SchedulerConfig
    from services.router.requests import Request
    from services.router.workers import Worker

_LEAVES_ROOM = 5.0
"""Times its own prefill that a long prompt leaves room for shorter ones."""


@dataclass(slots=True, frozen=True)
class ModelView:
    """What gateways are told of a model. `workers` are addresses; empty = none takes work now."""

    model: str
    card_hash: str
    workers: tuple[str, ...]
    context_length: int


class Pool:
    """A served name. Base models and LoRA adapters are pools of their own and may share workers.

    `workers` are all that are registered; `eligible` those that may get work: not draining, and with the pool's card;
    `open` those of them that have any room now.
    """

    def __init__(self, name: str, config: SchedulerConfig, *, known: bool) -> None:
        self.name = name
        self.known = known
        """Declared, or served by some worker since the router's start."""
        self.card_hash = ""
        self.context_length = 0
        self.workers: dict[int, Worker] = {}
        self.eligible: dict[int, Worker] = {}
        self.open: dict[int, Worker] = {}
        self.queue = Bands(config)
        self.lengths = LengthPools(config.length_bounds)

    def view(self) -> ModelView:
        """As of now."""
        addresses = tuple(worker.info.address for worker in self.eligible.values())
        return ModelView(self.name, self.card_hash, addresses, self.context_length)

    def elect(self) -> tuple[bool, bool]:
        """Settle the card and who is eligible, after a worker came, went or changed its draining; (changed, new card).

        Two cards tokenize differently, so only one may serve. The card of the most workers that are not draining
        wins: a rolling update moves over at half way, when the new side can carry the load. Among equals the greater
        hash wins, which means nothing but is the same on every router, whatever the order of registrations: gateways
        hear of cards from all routers and must not hear two.
        """
        votes = Counter(worker.info.card_hash for worker in self.workers.values() if not worker.draining)
        card = max(votes, key=lambda key: (votes[key], key)) if votes else self.card_hash
        new_card = card != self.card_hash
        self.card_hash = card
        eligible = {
            incarnation: worker
            for incarnation, worker in self.workers.items()
            if worker.info.card_hash == card and not worker.draining
        }
        changed = new_card or eligible.keys() != self.eligible.keys()
        self.eligible = eligible
        self.open = {incarnation: worker for incarnation, worker in eligible.items() if worker.has_room}
        self.queue.resize(sum(worker.info.max_sequences for worker in eligible.values()))
        if eligible:
            self.context_length = max(worker.info.context_length for worker in eligible.values())
        return changed, new_card

    def room_changed(self, worker: Worker) -> None:
        """`worker.has_room` flipped."""
        if worker.has_room and worker.incarnation in self.eligible:
            self.open[worker.incarnation] = worker
        else:
            self.open.pop(worker.incarnation, None)

    def could_ever_hold(self, request: Request) -> bool:
        """Whether some worker with this card could, were it empty; also while there is none that could say."""
        peers = [worker for worker in self.workers.values() if worker.info.card_hash == self.card_hash]
        return not peers or any(worker.could_hold(request) for worker in peers)

    def has_candidate(self, request: Request) -> bool:
        """Whether some eligible worker that the request doesn't exclude could hold it, were it empty."""
        excluded = request.excluded
        return any(
            worker.could_hold(request) for worker in self.eligible.values() if worker.incarnation not in excluded
        )

    def measure(self, now: float, request: Request) -> None:
        """Find how much a new request has to compute on the worker that holds most of it."""
        hit = max(request.match.hits().values(), default=0) if request.match is not None else 0
        request.uncached = request.prompt_tokens - hit
        worker = next(iter(self.eligible.values()), None)
        request.work_s = worker.slope_ms * request.uncached / 1000 if worker is not None else 0.0
        self.lengths.learn(now, request.uncached)

    def kept_from(self, now: float, request: Request) -> int:
        """Workers without backlog that it must leave to shorter prompts; none once it waited long for its size."""
        if now - request.arrived > _LEAVES_ROOM * request.work_s:
            return 0
        return self.lengths.kept(request.uncached, len(self.eligible))

    def predicted_ttft_s(self, request: Request) -> float:
        """On the best worker once it is the request's turn; 0.0 while the speed of some worker isn't known."""
        workers = self.eligible.values()
        if not workers or not all(worker.model.trusted for worker in workers):
            return 0.0
        return min(worker.model.a + worker.slope_ms * request.uncached_on(worker) for worker in workers) / 1000
