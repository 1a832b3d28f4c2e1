"""A mesh in simulated time: the scheduler, simulated engines as they run in workers, and clients."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from penstock.v1 import engine_pb2

from services.router.config import SchedulerConfig
from services.router.events import Event, Granted, Preempt, Rejected
from services.router.requests import Request, Usage
from services.router.scheduler import Scheduler
from services.router.workers import Report
from services.worker.engine.base import EngineRequest
from services.worker.engine.sim_core import KV_BLOCK, SimCore, SimModel
from tests.unit.router.world import registration

if TYPE_CHECKING:
    from collections.abc import Callable

REPORT_S = 0.1


@dataclass(slots=True)
class Client:
    """Arrivals of one kind from 0 to `until_s`: a Poisson process, or `even`ly spaced."""

    name: str
    per_s: float
    prompt_tokens: int
    answer_tokens: int
    priority_class: int = 1
    until_s: float = 60.0
    even: bool = False


@dataclass(slots=True)
class Outcome:
    """Of a client. Seconds; `served` are (time, tokens): prompts when computed, answers as they come."""

    ttft_s: list[float] = field(default_factory=list)
    served: list[tuple[float, int]] = field(default_factory=list)
    refused: int = 0

    def p99_s(self) -> float:
        """Of the time to first token."""
        return sorted(self.ttft_s)[int(len(self.ttft_s) * 0.99)]

    def tokens(self, begin_s: float, end_s: float) -> int:
        """Served in a stretch of time."""
        return sum(count for at, count in self.served if begin_s <= at < end_s)


class Engine:
    """A worker: steps while it has work, reports after a step, at most every 100 ms."""

    def __init__(self, mesh: Mesh, incarnation: int) -> None:
        self.core = SimCore(SimModel(), np.arange(100, 1000, dtype=np.uint32))
        self._mesh = mesh
        self._incarnation = incarnation
        self._stepping = False
        self._reported_at = 0.0
        self.started: list[int] = []
        self._ended: list[int] = []
        self._steps: list[tuple[float, int, int]] = []

    def submit(self, lease: int, client: Client, number: int) -> None:
        """Run a request whose prompt nobody else has."""
        tokens = np.random.default_rng(number).integers(100, 1000, client.prompt_tokens, dtype=np.uint32)
        sampling = engine_pb2.SamplingParams(max_tokens=client.answer_tokens, ignore_eos=True)
        self.core.submit(EngineRequest(lease, tokens, client.prompt_tokens, 0, sampling, client.priority_class - 1))
        self.started.append(lease)
        if not self._stepping:
            self._step()

    def abort(self, lease: int) -> None:
        """Forget it."""
        self.core.abort([lease])
        self._ended.append(lease)

    def _step(self) -> None:
        self._stepping = True
        step = self.core.step()
        assert step.cost is not None
        self._steps.append((step.cost.step_ms, step.cost.prefill_tokens, step.cost.running))
        finished = [finish.id for finish in step.finishes]
        self._mesh.at(step.cost.step_ms / 1000, lambda: self._done(step.ids, finished))

    def _done(self, ids: list[int], finished: list[int]) -> None:
        for lease in ids:
            self._mesh.token(lease)
        self._ended += finished
        if self._mesh.now - self._reported_at >= REPORT_S or not self.core.busy:
            self.report()
        for lease in finished:
            self._mesh.finished(lease)
        self._stepping = False
        if self.core.busy and not self._stepping:
            self._step()

    def report(self) -> None:
        """The load now."""
        load = self.core.load()
        report = Report(
            running=load.running, waiting=load.waiting, free_blocks=load.free_kv_blocks,
            queued_prefill_tokens=load.queued_prefill_tokens, leases_started=tuple(self.started),
            leases_ended=tuple(self._ended), steps=tuple(self._steps[-16:]),
        )  # fmt: skip
        self.started, self._ended, self._steps = [], [], []
        self._reported_at = self._mesh.now
        self._mesh.take(self._mesh.scheduler.worker_reported(self._mesh.now, self._incarnation, report))


class Mesh:
    """One router, `workers` simulated engines of 256 sequences, and clients. `run` ends when all arrivals are over."""

    def __init__(self, workers: int, clients: list[Client], *, seed: int = 1) -> None:
        self.now = 0.0
        self.scheduler = Scheduler(SchedulerConfig(), incarnation=1, now=0.0)
        self.outcomes: dict[str, Outcome] = defaultdict(Outcome)
        self.preempts = self.yields = 0
        self._orders = itertools.count()
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._clients: dict[int, Client] = {}
        self._arrived: dict[int, float] = {}
        self._leases: dict[int, tuple[int, int]] = {}
        self._answered: dict[int, int] = {}
        self._engines: dict[int, Engine] = {}
        self._until = max(client.until_s for client in clients)
        model = SimModel()
        for incarnation in range(1, workers + 1):
            self._engines[incarnation] = Engine(self, incarnation)
            info = registration(
                incarnation, max_sequences=model.max_running, kv_blocks=model.kv_tokens // KV_BLOCK,
                block_size=KV_BLOCK, context_length=131_072,
            )  # fmt: skip
            self.scheduler.worker_registered(0.0, info)
            self._heartbeat(self._engines[incarnation])
        numbers = itertools.count(1)
        for client in clients:
            draw, at = random.Random(f"{seed} {client.name}"), 0.0
            while (at := at + (1 / client.per_s if client.even else draw.expovariate(client.per_s))) < client.until_s:
                number = next(numbers)
                self._clients[number] = client
                self.at(at, lambda number=number: self._arrive(number))  # type: ignore[misc]

    def at(self, after_s: float, action: Callable[[], None]) -> None:
        """Do it later."""
        heapq.heappush(self._agenda, (self.now + after_s, next(self._orders), action))

    def run(self) -> dict[str, Outcome]:
        """Outcomes by client."""
        while self._agenda and self._agenda[0][0] < self._until:
            due = self.scheduler.next_due()
            if due is not None and due <= self._agenda[0][0]:
                self.now = max(self.now, due)
                self.take(self.scheduler.tick(self.now))
                continue
            self.now, _, action = heapq.heappop(self._agenda)
            action()
        return self.outcomes

    def take(self, events: list[Event]) -> None:
        """Do as the router says."""
        for event in events:
            if isinstance(event, Granted):
                self._leases[event.lease] = (event.request, event.incarnation)
                self._engines[event.incarnation].submit(event.lease, self._clients[event.request], event.request)
            elif isinstance(event, Rejected):
                self.outcomes[self._clients[event.request].name].refused += 1
            elif isinstance(event, Preempt):
                self.preempts += 1
                self.at(0.001, lambda lease=event.lease: self._preempt(lease))  # type: ignore[misc]

    def token(self, lease: int) -> None:
        """A token came."""
        if lease not in self._leases:
            return
        number = self._leases[lease][0]
        client = self._clients[number]
        outcome = self.outcomes[client.name]
        if lease not in self._answered:
            outcome.ttft_s.append(self.now - self._arrived[number])
            outcome.served.append((self.now, client.prompt_tokens))
        self._answered[lease] = self._answered.get(lease, 0) + 1
        outcome.served.append((self.now, 1))

    def finished(self, lease: int) -> None:
        """All tokens came."""
        if self._leases.pop(lease, None) is not None:
            usage = Usage(self._answered.pop(lease), 0)
            self.take(self.scheduler.release(self.now, 1, lease, usage))

    def _arrive(self, number: int) -> None:
        client = self._clients[number]
        self._arrived[number] = self.now
        request = Request(
            1, number, "m", client.prompt_tokens, client.answer_tokens, arrived=self.now, tenant=client.name,
            priority_class=client.priority_class,
        )  # fmt: skip
        self.take(self.scheduler.acquire(self.now, request))

    def _preempt(self, lease: int) -> None:
        if lease not in self._leases or lease in self._answered:
            self.take(self.scheduler.refused(self.now, 1, lease))
            return
        self.yields += 1
        _, incarnation = self._leases.pop(lease)
        self._engines[incarnation].abort(lease)
        self.take(self.scheduler.yielded(self.now, 1, lease))

    def _heartbeat(self, engine: Engine) -> None:
        engine.report()
        self.at(0.5, lambda: self._heartbeat(engine))
