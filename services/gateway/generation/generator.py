"""Runs jobs: admission to this gateway, the response cache, and the accounts of what was generated."""

from __future__ import annotations

import asyncio
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from services.common.errors import ContendedError, UnavailableError
from services.common.frames import FinishReason
from services.gateway.cache import CachedChoice
from services.gateway.generation.generation import Generation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.gateway.cache import ResponseCache
    from services.gateway.generation.choice import Listener
    from services.gateway.generation.job import CacheState, Job
    from services.gateway.mesh.routers import RouterPool
    from services.gateway.mesh.workers import WorkerPool
    from services.gateway.metrics import Metrics
    from services.gateway.openai.chunks import Usage


class Run:
    """One job under way, for the headers and accounts of its response."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.cache: CacheState = "miss" if job.use_cache else "off"
        self.generation: Generation | None = None

    @property
    def queued_s(self) -> float:
        """Seconds from the request's arrival to its lease; 0 while there is none."""
        return self.generation.queued_s if self.generation is not None else 0.0

    @property
    def matched_tokens(self) -> int:
        """Tokens of the prompt that were predicted to be cached on its worker."""
        return self.generation.matched_tokens if self.generation is not None else 0


class Generator:
    """All generations of this gateway."""

    def __init__(
        self,
        routers: RouterPool,
        workers: WorkerPool,
        cache: ResponseCache | None,
        metrics: Metrics,
        *,
        requests_max: int,
        moves_max: int,
    ) -> None:
        self._routers = routers
        self._workers = workers
        self._cache = cache
        self._metrics = metrics
        self._requests_max = requests_max
        self._moves_max = moves_max
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._running = 0
        self.responses = 0

    @property
    def ready(self) -> bool:
        """Requests are taken and some router is reachable."""
        return not self._closed and self._routers.live > 0

    def close(self) -> None:
        """Take no new jobs."""
        self._closed = True

    async def wait_idle(self) -> None:
        """Until no response is under way."""
        await self._idle.wait()

    @contextmanager
    def response(self) -> Iterator[None]:
        """A response is under way in this block: it outlasts its generation while its client is behind."""
        self.responses += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.responses -= 1
            if not self.responses:
                self._idle.set()

    async def run(self, run: Run, listener: Listener) -> Usage:
        """Generate `run.job` into `listener`.

        Raises:
            ContendedError: this gateway has its fill.
            PenstockError: as `Generation.run`.
        """
        self._admit()
        self._running += 1
        self._metrics.running.inc()
        try:
            return await self._run(run, listener)
        finally:
            self._metrics.running.dec()
            self._running -= 1

    def _admit(self) -> None:
        if self._closed:
            raise UnavailableError("this gateway is shutting down; connect again to reach another", retry_after_s=1)
        if self._running >= self._requests_max:
            raise ContendedError(f"this gateway runs {self._running} generations already", retry_after_s=1)

    async def _run(self, run: Run, listener: Listener) -> Usage:
        job = run.job
        generation = Generation(job, self._routers, self._workers, listener, moves_max=self._moves_max)
        run.generation = generation
        key = job.cache_key if job.use_cache and self._cache is not None else b""
        if not key or self._cache is None:
            run.cache = "off"
        else:
            looked = await self._cache.get_or_lead(key, job.response_id, job.deadline)
            if looked.found is not None and len(looked.found) == job.choices:
                run.cache = "shared" if looked.shared else "hit"
                _replay(generation, looked.found)
                self._account(run, generation.usage)
                return generation.usage
        done = False
        try:
            usage = await generation.run()
            done = True
        finally:  # what was generated counts, however it ended
            if generation.queued_s:
                self._metrics.queue.labels(job.text.meta.model).observe(generation.queued_s)
                self._account(run, generation.usage)
            if key and self._cache is not None and not done:
                self._cache.release(key, job.response_id)
        if key and self._cache is not None:
            answer = [CachedChoice(each.produced, each.reason) for each in generation.choices]
            self._cache.put(key, job.response_id, answer)
        return usage

    def _account(self, run: Run, usage: Usage) -> None:
        model = run.job.text.meta.model
        self._metrics.duration.labels(model).observe(time.monotonic() - run.job.arrived)
        for kind, count in (
            ("prompt", usage.prompt_tokens), ("cached", usage.cached_tokens), ("completion", usage.completion_tokens)
        ):  # fmt: skip
            self._metrics.tokens.labels(model, kind).inc(count)


def _replay(generation: Generation, cached: list[CachedChoice]) -> None:
    for choice, stored in zip(generation.choices, cached, strict=True):
        if stored.tokens:
            choice.on_tokens(0, stored.tokens, None)
        reason = FinishReason.LENGTH if stored.reason == "length" else FinishReason.STOP
        choice.on_finish(reason, 0, 0, len(stored.tokens), "")
