"""The simulator in real time: `SimCore` paced by absolute deadlines, so that its steps don't drift under load."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from services.worker.engine.base import EngineInfo
from services.worker.engine.sim_core import KV_BLOCK, SimCore, SimModel

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    import numpy as np
    import numpy.typing as npt

    from services.worker.engine.base import EngineLoad, EngineRequest, EngineStep, KvChange

CATCH_UP_S = 0.05
"""A late simulator makes up for at most this much; the rest of the delay is lost time."""


class SimEngine:
    """An `Engine` that needs no model, only a vocabulary.

    Args:
        version: `CardMeta.version`, for the hashes of blocks.
        kv_events: report the prefix cache.
    """

    def __init__(
        self,
        model: SimModel,
        vocabulary: npt.NDArray[np.uint32],
        context_length: int,
        *,
        version: str = "",
        kv_events: bool = True,
    ) -> None:
        self._core = SimCore(model, vocabulary, version)
        self._kv_events = kv_events
        self._kv_changed = asyncio.Event()
        self._context_length = min(context_length, self._core.pool.capacity * KV_BLOCK)
        self._wake = asyncio.Event()
        self._stopped = False

    async def start(self) -> EngineInfo:
        """Nothing to load."""
        return EngineInfo(
            kind="sim",
            context_length=self._context_length,
            kv_blocks=self._core.pool.capacity,
            kv_block_size=KV_BLOCK,
            capabilities=("logprobs",),
            kv_events=self._kv_events,
        )

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        """See `Engine`. Sampling parameters other than lengths, stop tokens, seed and logprobs change nothing."""
        for request in requests:
            self._core.submit(request)
        self._wake.set()

    def abort(self, ids: Sequence[int]) -> None:
        """See `Engine`."""
        self._core.abort(ids)

    def load(self) -> EngineLoad:
        """See `Engine`."""
        return self._core.load()

    async def steps(self) -> AsyncGenerator[EngineStep, None]:
        """See `Engine`. A step's tokens appear when its time is over."""
        due = time.monotonic()
        while not self._stopped:
            if not self._core.busy:
                self._wake.clear()
                await self._wake.wait()
                due = time.monotonic()
                continue
            step = self._core.step()
            if len(self._core.pool.changes):
                self._kv_changed.set()
            assert step.cost is not None
            due = max(due + step.cost.step_ms / 1e3, time.monotonic() - CATCH_UP_S)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            yield step

    async def kv_events(self) -> AsyncGenerator[KvChange, None]:
        """See `Engine`. A block counts from the step that computes it, as vLLM counts it when it is scheduled."""
        while not self._stopped:
            await self._kv_changed.wait()
            self._kv_changed.clear()
            if change := self._core.pool.changes.take():
                yield change

    async def stop(self) -> None:
        """See `Engine`: ends `steps` and `kv_events`."""
        self._stopped = True
        self._kv_changed.set()
        self._wake.set()
