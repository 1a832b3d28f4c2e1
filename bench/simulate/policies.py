"""Who gets which worker: the scheduler of the router, and simple policies to compare it with.

The simple ones see the workers as they are at the very moment; the router's scheduler hears reports, as in production.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from bench.simulate.engine import Worker
    from bench.simulate.traces import Call

Grant = tuple[int, int]
"""(call, worker)."""


class Policy(Protocol):
    """Every method returns what it grants."""

    def offer(self, now: float, number: int, call: Call) -> list[Grant]:
        """A call arrives."""

    def ended(self, now: float, number: int, output: int, cached: int) -> list[Grant]:
        """A call is over."""

    def report(self, now: float, worker: Worker) -> list[Grant]:
        """A worker says how it is. Takes what it has gathered for that."""

    def tick(self, now: float) -> list[Grant]:
        """The clock reached `next_due`."""

    def next_due(self) -> float | None:
        """When `tick` has something to do."""


class Simple:
    """Grants at once, by `choose`."""

    def __init__(self, workers: Sequence[Worker], choose: Callable[[int, Call, Sequence[Worker]], Worker]) -> None:
        self._workers = workers
        self._choose = choose

    def offer(self, now: float, number: int, call: Call) -> list[Grant]:
        """One grant."""
        return [(number, self._choose(number, call, self._workers).number)]

    def ended(self, now: float, number: int, output: int, cached: int) -> list[Grant]:
        """Nothing."""
        return []

    def report(self, now: float, worker: Worker) -> list[Grant]:
        """Nothing."""
        return []

    def tick(self, now: float) -> list[Grant]:
        """Nothing."""
        return []

    def next_due(self) -> float | None:
        """Never."""
        return None


def round_robin(number: int, call: Call, workers: Sequence[Worker]) -> Worker:
    """In turn."""
    return workers[number % len(workers)]


def least_load(number: int, call: Call, workers: Sequence[Worker]) -> Worker:
    """The shortest wait until prefill begins, then the fewest sequences."""
    return min(workers, key=_load)


def prefix(number: int, call: Call, workers: Sequence[Worker]) -> Worker:
    """The longest cached prefix, then the least load."""
    return min(workers, key=lambda worker: (-worker.matched(call), *_load(worker)))


def greedy(number: int, call: Call, workers: Sequence[Worker]) -> Worker:
    """The shortest wait plus prefill of what isn't cached."""

    def ttft(worker: Worker) -> tuple[float, float, int, int]:
        uncached = call.prompt - worker.matched(call)
        return worker.wait_s() + uncached / worker.costs.prefill_tokens_per_s, *_load(worker)

    return min(workers, key=ttft)


def _load(worker: Worker) -> tuple[float, int, int]:
    return worker.wait_s(), worker.running + worker.waiting, worker.number


SIMPLE: dict[str, Callable[[int, Call, Sequence[Worker]], Worker]] = {
    "round-robin": round_robin,
    "least-load": least_load,
    "prefix": prefix,
    "greedy": greedy,
}
