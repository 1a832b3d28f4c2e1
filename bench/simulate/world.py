"""The clock of the simulation: arrivals, engine steps, reports, and what happened to each call."""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.simulate.engine import Costs, Worker
from bench.simulate.penstock import Penstock
from bench.simulate.policies import SIMPLE, Policy, Simple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from bench.simulate.policies import Grant
    from bench.simulate.traces import Call

HOP_S = 0.001
"""Between any two processes."""
REPORT_S = 0.1
POLICIES = ("round-robin", "least-load", "prefix", "greedy", "penstock")
_ARRIVAL, _SUBMIT, _STEP, _REPORT, _ENDED, _TICK = range(6)


@dataclass(slots=True)
class Outcome:
    """Of one call. Seconds and tokens."""

    ttft_s: float = math.nan
    end_s: float = math.nan
    hit: int = 0
    worker: int = -1


def policy_of(name: str, workers: Sequence[Worker], **config: Any) -> Policy:
    """One of POLICIES. `config`: of the scheduler."""
    return Penstock(workers, **config) if name == "penstock" else Simple(workers, SIMPLE[name])


class World:
    """One run. Events of the same instant happen in the order in which they were planned."""

    def __init__(self, calls: Sequence[Call], workers: int, policy: str, costs: Costs | None = None, **config: Any):
        self.calls = calls
        self.outcomes = [Outcome() for _ in calls]
        self.workers = [Worker(number, costs or Costs()) for number in range(workers)]
        self._policy = policy_of(policy, self.workers, **config)
        self._reports = policy == "penstock"
        self._reported = [-math.inf] * workers
        self._report_planned = [False] * workers
        self._tick_at = math.inf
        self._heap: list[tuple[float, int, int, int]] = []
        self._order = 0

    def run(self) -> list[Outcome]:
        """Until every call has ended."""
        for number, call in enumerate(self.calls):
            self._plan(call.at_s + HOP_S, _ARRIVAL, number)
        left = len(self.calls)
        while left:
            now, _, kind, number = heapq.heappop(self._heap)
            if kind == _ARRIVAL:
                self._grant(now, self._policy.offer(now, number, self.calls[number]))
            elif kind == _SUBMIT:
                self._submit(now, number)
            elif kind == _STEP:
                self._step(now, number)
            elif kind == _REPORT:
                self._report(now, number)
            elif kind == _ENDED:
                left -= 1
                call, outcome = self.calls[number], self.outcomes[number]
                self._grant(now, self._policy.ended(now, number, call.output, outcome.hit))
            elif now >= self._tick_at:
                self._tick_at = math.inf
                self._grant(now, self._policy.tick(now))
        return self.outcomes

    def _plan(self, at: float, kind: int, number: int) -> None:
        self._order += 1
        heapq.heappush(self._heap, (at, self._order, kind, number))

    def _grant(self, now: float, grants: list[Grant]) -> None:
        for number, worker in grants:
            self.outcomes[number].worker = worker
            self._plan(now + 2 * HOP_S, _SUBMIT, number)
        due = self._policy.next_due()
        if due is not None and due < self._tick_at:
            self._tick_at = max(due, now)
            self._plan(self._tick_at, _TICK, 0)

    def _submit(self, now: float, number: int) -> None:
        worker = self.workers[self.outcomes[number].worker]
        before = worker.due
        worker.submit(now, number, self.calls[number])
        if worker.due != before:
            self._plan(worker.due, _STEP, worker.number)
        self._plan_report(now, worker)

    def _step(self, now: float, number: int) -> None:
        worker = self.workers[number]
        if now != worker.due:
            return  # a longer run of steps was planned, and an arrival cut it short
        progress = worker.advance(now)
        for sequence in progress.first_tokens:
            outcome = self.outcomes[sequence.number]
            outcome.ttft_s = now + HOP_S - self.calls[sequence.number].at_s
            outcome.hit = sequence.hit
        for sequence in progress.ended:
            self.outcomes[sequence.number].end_s = now
            self._plan(now + 2 * HOP_S, _ENDED, sequence.number)
        if worker.due < math.inf:
            self._plan(worker.due, _STEP, number)
        self._plan_report(now, worker)

    def _plan_report(self, now: float, worker: Worker) -> None:
        """After a step or every 100 ms, whichever is later; at once when it turns idle."""
        number = worker.number
        if not self._reports or self._report_planned[number]:
            return
        if worker.due == math.inf or now >= self._reported[number] + REPORT_S:
            self._reported[number] = now
            self._report_planned[number] = True
            self._plan(now + HOP_S, _REPORT, number)

    def _report(self, now: float, number: int) -> None:
        self._report_planned[number] = False
        self._grant(now, self._policy.report(now, self.workers[number]))
