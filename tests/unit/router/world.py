"""Shorthand for scheduler tests: a scheduler on a hand-turned clock, and values with defaults."""

from __future__ import annotations

import math
from typing import Any, TypeVar

from services.router.config import SchedulerConfig
from services.router.events import Event, Granted, Rejected
from services.router.requests import Request
from services.router.scheduler import Scheduler
from services.router.workers import Registration, Report

E = TypeVar("E", bound=Event)


def registration(incarnation: int = 1, **fields: Any) -> Registration:
    """An idle worker with two slots and plenty of KV."""
    kv_blocks = fields.get("kv_blocks", 1000)
    values: dict[str, Any] = {
        "worker_id": f"worker-{incarnation}",
        "incarnation": incarnation,
        "address": f"host:{incarnation}",
        "models": ("m",),
        "card_hash": "card",
        "context_length": 4096,
        "max_sequences": 2,
        "kv_blocks": kv_blocks,
        "block_size": 16,
        "report": Report(free_blocks=kv_blocks),
    }
    return Registration(**{**values, **fields})


class World:
    """A scheduler and its clock. Each call returns the events it caused."""

    def __init__(self, *workers: Registration, now: float = 1000.0, **config: Any) -> None:
        self.now = now
        self.scheduler = Scheduler(SchedulerConfig(**config), incarnation=0xABCD, now=now)
        self._numbers = 0
        for worker in workers:
            self.scheduler.worker_registered(self.now, worker)

    def acquire(self, *, gateway: int = 1, waited: float = 0.0, within: float = math.inf, **fields: Any) -> list[Event]:
        """A request of one block, unless `fields` say otherwise; numbers count from 1. Deadline `within` seconds."""
        self._numbers += 1
        values: dict[str, Any] = {"model": "m", "prompt_tokens": 8, "max_tokens": 8, **fields}
        arrived, deadline = self.now - waited, self.now + within
        request = Request(gateway=gateway, number=self._numbers, arrived=arrived, deadline=deadline, **values)
        return self.scheduler.acquire(self.now, request)

    def fill(self, count: int, **fields: Any) -> list[int]:
        """Acquire `count` leases that must all be granted; their ids."""
        return [only(Granted, self.acquire(**fields)).lease for _ in range(count)]

    def release(self, lease: int, gateway: int = 1) -> list[Event]:
        """The lease is over."""
        return self.scheduler.release(self.now, gateway, lease)

    def report(self, incarnation: int = 1, **fields: Any) -> list[Event]:
        """A report; an idle one unless `fields` say otherwise."""
        blocks = self.scheduler.workers()[incarnation].info.kv_blocks
        return self.scheduler.worker_reported(self.now, incarnation, Report(**{"free_blocks": blocks, **fields}))

    def wait(self, seconds: float, *, heartbeats: bool = True) -> list[Event]:
        """Turn the clock, ticking when something is due; live workers repeat their last report every half second."""
        until, events = self.now + seconds, []
        beat = self.now + 0.5
        while True:
            due = self.scheduler.next_due()
            step = min(until, beat if heartbeats else until, until if due is None else max(due, self.now))
            self.now = step
            if heartbeats and step == beat:
                beat += 0.5
                for worker in list(self.scheduler.workers().values()):
                    worker.last_heard = self.now
            if due is not None and due <= self.now:
                events.extend(self.scheduler.tick(self.now))
            if self.now >= until and (due is None or due > until or (self.scheduler.next_due() or math.inf) > until):
                return events


def of(kind: type[E], events: list[Event]) -> list[E]:
    """The events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def only(kind: type[E], events: list[Event]) -> E:
    """The one event of a kind, where there must be exactly one."""
    found = of(kind, events)
    assert len(found) == 1, events
    return found[0]


def reason(events: list[Event]) -> str:
    """Name of the reason of the one rejection."""
    return only(Rejected, events).reason.name
