"""A `Listener` that becomes protobuf events. What a slow client leaves unread is merged, as on HTTP."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import orjson
from penstock.v1 import inference_pb2 as pb

from services.gateway.generation.held import Held

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.gateway.generation.choice import Extra
    from services.gateway.generation.held import HeldChoice
    from services.gateway.generation.job import Job
    from services.gateway.mesh.workers import Logprobs


class EventStream:
    """Collects deltas until the servicer takes them; `wake` is set when there are some."""

    def __init__(self, job: Job) -> None:
        self.wake = asyncio.Event()
        self.first_event_at: float | None = None
        self._job = job
        self._held = Held()
        self._begun = False

    def on_delta(self, choice: int, text: str, last_index: int, extra: Extra | None) -> None:
        """See `Listener`."""
        self._held.delta(choice, text, last_index, extra)
        self._note()

    def on_end(self, choice: int, reason: str, tokens: int) -> None:
        """See `Listener`."""
        self._held.end(choice, reason, tokens)
        self._note()

    def _note(self) -> None:
        if self.first_event_at is None:
            self.first_event_at = time.monotonic()
        self.wake.set()

    def take(self) -> Iterator[pb.GenerateEvent]:
        """Events for all that came since.

        Raises:
            CancelledError_: the client left too much unread.
        """
        if self._held.error is not None:
            raise self._held.error
        if self._held and not self._begun:
            self._begun = True
            job = self._job
            yield pb.GenerateEvent(
                started=pb.Started(response_id=job.response_id, model=job.model, created_unix_s=int(time.time()))
            )
        for choice, held in self._held.take():
            if held.has_delta:
                yield pb.GenerateEvent(delta=self._delta(choice, held))
            if held.end is not None:
                reason, tokens = held.end
                yield pb.GenerateEvent(finish=pb.Finish(choice=choice, reason=reason, tokens=tokens))

    def _delta(self, choice: int, held: HeldChoice) -> pb.Delta:
        delta = pb.Delta(choice=choice, text=held.text, last_index=max(0, held.last_index))
        if held.extra is not None:
            delta.logprobs.extend(self._logprobs(held.extra.logprobs))
            if held.extra.tool_calls:
                delta.tool_calls_json = orjson.dumps(held.extra.tool_calls).decode()
        return delta

    def _logprobs(self, rows: Logprobs) -> Iterator[pb.TokenLogprob]:
        text = self._job.text.vocabulary.token_text
        for token, logprob, top in rows:
            alternatives = [pb.TokenLogprob(token=text(other), logprob=value) for other, value in top]
            yield pb.TokenLogprob(token=text(token), logprob=logprob, top=alternatives)
