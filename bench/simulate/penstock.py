"""The router's own scheduler as a policy: the same code as in production, told by calls instead of messages."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from bench.simulate.engine import KV_BLOCK, PER_BLOCK
from services.common.blocks import HASH_BYTES, split
from services.router.config import SchedulerConfig
from services.router.events import Granted, Rejected
from services.router.prefix.feed import BlockUpdate
from services.router.requests import Request, Usage
from services.router.scheduler import Scheduler
from services.router.workers import Registration, Report

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from bench.simulate.engine import Worker
    from bench.simulate.policies import Grant
    from bench.simulate.traces import Call
    from services.router.events import Event

_GATEWAY = 1
_MAX_TOKENS_MIN = 256
_NEVER_S = 1e9
_MIX = 0x9E37_79B9_7F4A_7C15


class Penstock:
    """Rejections are errors here: nothing in a simulation has a deadline, and its queues have no bound."""

    def __init__(self, workers: Sequence[Worker], **config: Any) -> None:
        self._scheduler = Scheduler(
            SchedulerConfig(
                queue_requests_max=10_000_000, queue_tokens_max=1 << 50, worker_timeout_s=_NEVER_S, **config
            ),
            incarnation=1,
            now=0.0,
        )
        self._leases: dict[int, int] = {}
        self._calls: dict[int, int] = {}
        self._sequences = [0] * len(workers)
        for worker in workers:
            self._scheduler.worker_registered(0.0, _registration(worker))
            update = BlockUpdate(self._next(worker), snapshot_begin=True, snapshot_end=True)
            self._scheduler.worker_blocks(0.0, worker.number + 1, update)

    def offer(self, now: float, number: int, call: Call) -> list[Grant]:
        """An Acquire. Its client allows an answer of up to twice what it gets."""
        request = Request(
            gateway=_GATEWAY,
            number=number,
            model="m",
            prompt_tokens=call.prompt,
            max_tokens=max(_MAX_TOKENS_MIN, 1 << (call.output - 1).bit_length()),
            arrived=now,
            tenant=call.tenant,
            priority_class=call.priority_class,
            block_hashes=b"".join(map(_hashes, call.blocks))[: call.prompt // KV_BLOCK * HASH_BYTES],
            session=call.session,
        )
        return self._grants(self._scheduler.acquire(now, request))

    def ended(self, now: float, number: int, output: int, cached: int) -> list[Grant]:
        """A Release."""
        lease = self._leases.pop(number)
        del self._calls[lease]
        return self._grants(self._scheduler.release(now, _GATEWAY, lease, Usage(output, cached)))

    def report(self, now: float, worker: Worker) -> list[Grant]:
        """A LoadReport and a BlockEvents."""
        grants: list[Grant] = []
        if worker.stored or worker.removed:
            update = BlockUpdate(self._next(worker), stored=_expand(worker.stored), removed=_expand(worker.removed))
            grants += self._grants(self._scheduler.worker_blocks(now, worker.number + 1, update))
        report = _report(worker, self._leases)
        worker.started, worker.finished, worker.stored, worker.removed, worker.steps = [], [], {}, {}, []
        return grants + self._grants(self._scheduler.worker_reported(now, worker.number + 1, report))

    def tick(self, now: float) -> list[Grant]:
        """What is due."""
        return self._grants(self._scheduler.tick(now))

    def next_due(self) -> float | None:
        """When."""
        return self._scheduler.next_due()

    def _grants(self, events: Iterable[Event]) -> list[Grant]:
        grants = []
        for event in events:
            if isinstance(event, Granted):
                self._leases[event.request] = event.lease
                self._calls[event.lease] = event.request
                grants.append((event.request, event.incarnation - 1))
            elif isinstance(event, Rejected):
                raise ValueError(f"request {event.request} was rejected: {event.detail}")
        return grants

    def _next(self, worker: Worker) -> int:
        self._sequences[worker.number] += 1
        return self._sequences[worker.number]


def _registration(worker: Worker) -> Registration:
    return Registration(
        worker_id=f"worker-{worker.number}",
        incarnation=worker.number + 1,
        address=f"worker-{worker.number}:1",
        models=("m",),
        card_hash="card",
        context_length=worker.costs.kv_tokens,
        max_sequences=worker.costs.max_running,
        kv_blocks=worker.capacity,
        block_size=KV_BLOCK,
        report=Report(free_blocks=worker.capacity),
        reports_blocks=True,
    )


def _report(worker: Worker, leases: dict[int, int]) -> Report:
    return Report(
        running=worker.running,
        waiting=worker.waiting,
        free_blocks=worker.free,
        queued_prefill_tokens=worker.queued,
        leases_started=tuple(leases[number] for number in worker.started if number in leases),
        leases_ended=tuple(leases[number] for number in worker.finished if number in leases),
        steps=tuple(worker.steps),
    )


@cache
def _hashes(block: int) -> bytes:
    """Of the 16-token blocks of a trace's block."""
    name = ((block + 1) * _MIX) & 0xFFFF_FFFF_FFFF_FFFF
    return b"".join(name.to_bytes(8, "big") + part.to_bytes(8, "big") for part in range(PER_BLOCK))


def _expand(sizes: dict[int, int]) -> list[bytes]:
    return [each for block, size in sizes.items() for each in split(_hashes(block)[: size * HASH_BYTES])]
