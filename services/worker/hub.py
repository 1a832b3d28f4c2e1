"""All sequences of a worker and the gateways that own them: what goes to the engine, and which frame goes to whom.

No I/O: a gateway is a `Sink` of encoded frames, time comes from an injected timer. The rules of the identities
(DESIGN 2.4) are kept here: one handle = one (response_id, attempt, choice) on a stream, and exactly one finish each.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from services.common.frames import FinishReason, StepFrame, encode_frame
from services.worker.engine.base import EngineRequest
from services.worker.submits import CHOICES_MAX, HANDLE_MAX, HandleSet, SubmitError, read_submit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from penstock.v1 import engine_pb2

    from services.worker.engine.base import Engine, EngineStep, StepCost
    from services.worker.submits import Limits

HANDLE_RANGES_MAX = 65_536
"""A gateway whose used handles have more gaps than this is told to count instead of drawing lots."""


class Sink(Protocol):
    """Where a gateway's frames go; never waits."""

    def put(self, frame: bytes) -> None:
        """Queue a frame."""


class Timer(Protocol):
    """A pending call."""

    def cancel(self) -> None:
        """Don't call."""


class Listener(Protocol):
    """Who reports this worker's load."""

    def lease_started(self, lease: int) -> None:
        """A lease has its first sequence here."""

    def lease_ended(self, lease: int) -> None:
        """The last sequence of a lease ended."""

    def stepped(self, cost: StepCost | None) -> None:
        """The engine made a step."""

    def turned(self) -> None:
        """Idle became busy, or busy idle, or draining began."""


@dataclass(slots=True, eq=False)
class Live:
    """One choice of one request."""

    id: int
    gateway: Gateway
    handle: int
    lease: int
    prompt_tokens: int
    next_index: int
    cached: int = 0
    timer: Timer | None = None


@dataclass(slots=True, eq=False)
class Gateway:
    """One Attach stream."""

    sink: Sink
    by_handle: dict[int, Live] = field(default_factory=dict)
    used: HandleSet = field(default_factory=HandleSet)
    frame: StepFrame | None = None
    """Being filled; sent at the end of the current step or batch."""


class Hub:
    """Sequences, gateways, leases. Every public method leaves all frames that it caused in the sinks."""

    def __init__(
        self,
        engine: Engine,
        limits: Limits,
        incarnation: int,
        max_sequences: int,
        call_later: Callable[[float, Callable[[], None]], Timer],
        listener: Listener,
    ) -> None:
        self._engine = engine
        self._limits = limits
        self._incarnation = incarnation
        self._max_sequences = max_sequences
        self._call_later = call_later
        self._listener = listener
        self._by_id: dict[int, Live] = {}
        self._leases: dict[int, int] = {}  # lease -> its sequences
        self._last_id = 0
        self._dirty: list[Gateway] = []
        self._changed = asyncio.Event()
        self.step = 0
        self.draining = False

    def __len__(self) -> int:
        """Sequences that are accepted and not ended."""
        return len(self._by_id)

    @property
    def leases(self) -> list[int]:
        """Leases that have sequences here."""
        return list(self._leases)

    def drain(self) -> None:
        """Refuse what comes from now on."""
        self.draining = True
        self._listener.turned()

    async def idle(self) -> None:
        """Return when no sequence is left."""
        while self._by_id:
            self._changed.clear()
            await self._changed.wait()

    def receive(self, gateway: Gateway, submits: Iterable[engine_pb2.Submit], aborts: Sequence[int]) -> None:
        """A gateway's batch. Refusals and ends leave at once, not with the next step."""
        was_busy = bool(self._by_id)
        requests: list[EngineRequest] = []
        for submit in submits:
            self._submit(gateway, submit, requests)
        if requests:
            self._engine.submit(requests)
        self._abort([gateway.by_handle[handle] for handle in aborts if handle in gateway.by_handle])
        self._settle(was_busy)

    def close(self, gateway: Gateway) -> None:
        """A gateway is gone: its sequences end, in one engine call, and nobody is told."""
        was_busy = bool(self._by_id)
        gone = list(gateway.by_handle.values())
        if gone:
            self._engine.abort([sequence.id for sequence in gone])
        for sequence in gone:
            self._remove(sequence)
        if gateway in self._dirty:
            self._dirty.remove(gateway)
        self._settle(was_busy)

    def deliver(self, step: EngineStep) -> None:
        """One engine step: at most one frame for each gateway."""
        was_busy = bool(self._by_id)
        if step.cost is not None:
            self.step += 1
        by_id = self._by_id
        for id_, cached in step.cached:
            if (sequence := by_id.get(id_)) is not None:
                sequence.cached = min(cached, sequence.prompt_tokens)
        if step.logprobs:
            self._deltas_with_logprobs(step)
        else:
            self._deltas(step)
        for finish in step.finishes:
            if (sequence := by_id.get(finish.id)) is not None:
                self._finish(sequence, finish.reason, finish.detail)
        self._settle(was_busy)
        self._listener.stepped(step.cost)

    def _deltas(self, step: EngineStep) -> None:
        at, tokens, by_id = 0, step.tokens, self._by_id
        for id_, count in zip(step.ids, step.counts, strict=True):
            sequence = by_id.get(id_)
            if sequence is not None:
                frame = sequence.gateway.frame or self._open(sequence.gateway)
                frame.sequence.append(sequence.handle)
                frame.first_index.append(sequence.next_index)
                frame.count.append(count)
                frame.tokens.extend(tokens[at : at + count])
                sequence.next_index += count
            at += count

    def _deltas_with_logprobs(self, step: EngineStep) -> None:
        marked = {position: (value, top) for position, value, top in step.logprobs}
        at = 0
        for id_, count in zip(step.ids, step.counts, strict=True):
            sequence = self._by_id.get(id_)
            if sequence is not None:
                frame = sequence.gateway.frame or self._open(sequence.gateway)
                start = frame.add_delta(sequence.handle, sequence.next_index, step.tokens[at : at + count])
                sequence.next_index += count
                for i in range(count):
                    if at + i in marked:
                        value, top = marked[at + i]
                        frame.add_logprob(start + i, value, top)
            at += count

    def _submit(self, gateway: Gateway, submit: engine_pb2.Submit, requests: list[EngineRequest]) -> None:
        count = max(1, min(submit.choices, CHOICES_MAX, HANDLE_MAX - submit.sequence + 1))
        handles = range(submit.sequence, submit.sequence + count)
        try:
            if not gateway.used.add(submit.sequence, count):
                raise SubmitError(f"sequence: a handle of {handles.start} to {handles.stop - 1} was used before")
            if len(gateway.used) > HANDLE_RANGES_MAX:
                raise SubmitError("sequence: too many gaps between the handles; number them without gaps")
            tokens = read_submit(submit, self._limits)
        except SubmitError as error:
            self._refuse(gateway, handles, submit, FinishReason.INVALID, str(error))
            return
        if self.draining:
            self._refuse(gateway, handles, submit, FinishReason.REFUSED, "the worker is draining")
            return
        if len(self._by_id) + count > self._max_sequences:
            detail = f"the worker holds {len(self._by_id)} of at most {self._max_sequences} sequences"
            self._refuse(gateway, handles, submit, FinishReason.REFUSED, detail)
            return
        for offset, handle in enumerate(handles):
            sequence = self._accept(gateway, handle, submit)
            requests.append(
                EngineRequest(
                    id=sequence.id,
                    tokens=tokens,
                    prompt_tokens=submit.prompt_tokens,
                    choice=submit.first_choice + offset,
                    sampling=submit.sampling,
                    priority=submit.priority,
                    cache_salt=submit.cache_salt,
                    lora=submit.lora,
                )
            )

    def _accept(self, gateway: Gateway, handle: int, submit: engine_pb2.Submit) -> Live:
        self._last_id += 1
        sequence = Live(
            self._last_id, gateway, handle, submit.lease, submit.prompt_tokens, next_index=submit.first_index
        )
        self._by_id[sequence.id] = gateway.by_handle[handle] = sequence
        if submit.lease:
            held = self._leases.get(submit.lease, 0)
            self._leases[submit.lease] = held + 1
            if not held:
                self._listener.lease_started(submit.lease)
        if submit.deadline_ms:
            sequence.timer = self._call_later(submit.deadline_ms / 1e3, lambda: self._expire(sequence))
        return sequence

    def _refuse(
        self, gateway: Gateway, handles: range, submit: engine_pb2.Submit, reason: FinishReason, detail: str
    ) -> None:
        """One finish per handle. A live sequence under a reused handle ends with it: its frames would be ambiguous."""
        live = [gateway.by_handle[handle] for handle in handles if handle in gateway.by_handle]
        if live:
            self._engine.abort([sequence.id for sequence in live])
        for sequence in live:
            self._remove(sequence)
        frame = gateway.frame or self._open(gateway)
        for handle in handles:
            frame.add_finish(handle, reason, completion_tokens=submit.first_index, detail=detail)

    def _abort(self, sequences: Sequence[Live], reason: FinishReason = FinishReason.ABORTED) -> None:
        if sequences:
            self._engine.abort([sequence.id for sequence in sequences])
        for sequence in sequences:
            if sequence.id in self._by_id:  # a handle may stand twice in one batch
                self._finish(sequence, reason)

    def _expire(self, sequence: Live) -> None:
        if sequence.id in self._by_id:
            self._abort([sequence], FinishReason.DEADLINE)
            self._settle(was_busy=True)

    def _finish(self, sequence: Live, reason: FinishReason, detail: str = "") -> None:
        frame = sequence.gateway.frame or self._open(sequence.gateway)
        frame.add_finish(
            sequence.handle,
            reason,
            prompt_tokens=sequence.prompt_tokens,
            cached_tokens=sequence.cached,
            completion_tokens=sequence.next_index,
            detail=detail,
        )
        self._remove(sequence)

    def _remove(self, sequence: Live) -> None:
        del self._by_id[sequence.id]
        del sequence.gateway.by_handle[sequence.handle]
        if sequence.timer is not None:
            sequence.timer.cancel()
        if sequence.lease:
            left = self._leases[sequence.lease] - 1
            if left:
                self._leases[sequence.lease] = left
            else:
                del self._leases[sequence.lease]
                self._listener.lease_ended(sequence.lease)

    def _open(self, gateway: Gateway) -> StepFrame:
        gateway.frame = frame = StepFrame(self._incarnation, self.step)
        self._dirty.append(gateway)
        return frame

    def _settle(self, was_busy: bool) -> None:
        """Send the frames that were filled, and say when idle became busy or the other way round."""
        dirty, self._dirty = self._dirty, []
        for gateway in dirty:
            frame, gateway.frame = gateway.frame, None
            if frame is not None:
                gateway.sink.put(encode_frame(frame))
        if bool(self._by_id) != was_busy:
            self._changed.set()
            self._listener.turned()
