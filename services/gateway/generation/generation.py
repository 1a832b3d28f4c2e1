"""The life of one response: lease, submit, tokens, and again elsewhere when its worker is lost (DESIGN 3)."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from penstock.v1 import dispatch_pb2, engine_pb2

from services.common.errors import DeadlineError, EngineError, InvalidRequestError, PenstockError, UnavailableError
from services.common.frames import FinishReason, encode_tokens
from services.gateway.generation.choice import Choice
from services.gateway.generation.prefix import block_hashes, continued
from services.gateway.mesh.routers import Ask
from services.gateway.openai.chunks import Usage

if TYPE_CHECKING:
    from services.gateway.generation.choice import Listener
    from services.gateway.generation.job import Job
    from services.gateway.mesh.routers import Lease, RouterPool
    from services.gateway.mesh.workers import WorkerLink, WorkerPool

log = logging.getLogger(__name__)

_PRIORITY = {dispatch_pb2.INTERACTIVE: 0, dispatch_pb2.STANDARD: 1, dispatch_pb2.BATCH: 2}


class _Lost(Exception):
    """The worker of the current attempt is gone."""


class _Refused(Exception):
    """The worker of the current attempt is full."""


class _GaveWay(Exception):
    """A request of a higher class got the place of the current attempt, of which no token had come."""


class Generation:
    """Runs one `Job` to its end, feeding `listener` from the frame callback."""

    def __init__(
        self, job: Job, routers: RouterPool, workers: WorkerPool, listener: Listener, *, moves_max: int
    ) -> None:
        self._job = job
        self._routers = routers
        self._workers = workers
        self._moves_max = moves_max
        hidden = frozenset() if job.sampling.ignore_eos else _visible_ends(job)
        self.choices = [
            Choice(number, self, listener, job.text, stops=job.stops, tools=job.tools, hidden=hidden)
            for number in range(job.choices)
        ]
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._link: WorkerLink | None = None
        self._handles: dict[Choice, int] = {}
        self._hashes = b""
        self._moves = 0
        self.queued_s = 0.0
        self.matched_tokens = 0
        """Of the prompt, as many were predicted to be cached where it began."""

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        return Usage(
            prompt_tokens=len(self._job.prompt),
            completion_tokens=sum(len(choice.produced) for choice in self.choices),
            cached_tokens=max(choice.cached_tokens or 0 for choice in self.choices),
        )

    async def run(self) -> Usage:
        """Generate everything.

        Raises:
            PenstockError: refused, failed, or over its deadline; what was delivered stays delivered.
        """
        job = self._job
        self._hashes = await block_hashes(job)
        ask = Ask(
            response_id=job.response_id, model=job.model, prompt_tokens=len(job.prompt),
            max_tokens=job.sampling.max_tokens, choices=job.choices, priority_class=job.priority_class,
            tenant=job.tenant.id, tenant_weight=job.tenant.weight, deadline=job.deadline, arrived=job.arrived,
            block_hashes=self._hashes, session=job.session,
        )  # fmt: skip
        lease = await self._routers.acquire(ask)
        self._note(lease)
        outcome: dispatch_pb2.Outcome.ValueType = dispatch_pb2.FAILED
        try:
            while True:
                try:
                    await self._attempt(lease, ask.attempt)
                    outcome = dispatch_pb2.FINISHED
                    return self.usage
                except _Refused:
                    self._abort()
                    lease = await self._routers.again(lease, ask)
                    self._note(lease)
                except _GaveWay:
                    ask.attempt += 1
                    lease = await self._routers.again(lease, ask, yielded=True)
                    self._note(lease)
                except _Lost as lost:
                    self._abort()
                    if self._complete():
                        outcome = dispatch_pb2.FINISHED
                        return self.usage
                    lease = await self._move(lease, ask, str(lost))
                    self._note(lease)
        except asyncio.CancelledError:
            outcome = dispatch_pb2.CANCELLED
            raise
        finally:
            self._abort()
            lease.release(outcome, self.usage.completion_tokens, self._reused(lease))

    def _reused(self, lease: Lease) -> int:
        """Tokens cached when it began: later choices find the first one's. Unknown = as the router expected."""
        told = [choice.cached_tokens for choice in self.choices if choice.cached_tokens is not None]
        return min(told, default=lease.matched_tokens)

    def _note(self, lease: Lease) -> None:
        """A lease is there: until the first token, all of the time so far was spent waiting for it."""
        if not any(choice.produced for choice in self.choices):
            self.queued_s = time.monotonic() - self._job.arrived
            self.matched_tokens = lease.matched_tokens

    async def _attempt(self, lease: Lease, attempt: int) -> None:
        if lease.wanted:
            raise _GaveWay
        self._ended = asyncio.get_running_loop().create_future()
        lease.give_way = self._give_way
        self._link = self._workers.link(lease.worker, lease.incarnation)
        for submit, choices in self._submits(lease, attempt):
            handles = self._link.submit(submit, choices)
            self._handles.update(zip(choices, handles, strict=True))
        try:
            async with asyncio.timeout_at(self._job.deadline):
                await self._ended
        except TimeoutError:
            raise DeadlineError("the deadline passed before the answer was complete") from None

    def _submits(self, lease: Lease, attempt: int) -> list[tuple[engine_pb2.Submit, list[Choice]]]:
        """All choices over one prompt in one submit; after a move, one for each choice that has more to say."""
        open_choices = [choice for choice in self.choices if not choice.done]
        if not any(choice.produced for choice in self.choices):
            return [(self._submit(lease, attempt, open_choices[0], len(open_choices)), open_choices)]
        return [(self._submit(lease, attempt, choice, 1), [choice]) for choice in open_choices]

    def _submit(self, lease: Lease, attempt: int, first: Choice, choices: int) -> engine_pb2.Submit:
        job, produced = self._job, first.produced
        prompt = encode_tokens([*job.prompt, *produced])
        submit = engine_pb2.Submit(
            response_id=job.response_id, attempt=attempt, lease=lease.id, prompt=prompt,
            prompt_tokens=len(job.prompt), first_index=len(produced), choices=choices, first_choice=first.number,
            sampling=job.sampling, priority=_PRIORITY.get(job.priority_class, 0),
            cache_salt=job.tenant.isolation_salt, lora=job.lora,
        )  # fmt: skip
        submit.sampling.max_tokens -= len(produced)
        submit.sampling.min_tokens = max(0, submit.sampling.min_tokens - len(produced))
        if job.deadline is not None:
            submit.deadline_ms = max(1, int((job.deadline - time.monotonic()) * 1000))
        return submit

    async def _move(self, lease: Lease, ask: Ask, why: str) -> Lease:
        """A lease on another worker for what is left.

        Raises:
            PenstockError: it can't be moved, or was moved too often; or as `RouterPool.acquire`.
        """
        lease.release(dispatch_pb2.FAILED)
        if any(choice.produced for choice in self.choices):
            stuck = self._job.movable_after_first_token()
            if stuck:
                raise EngineError(f"the worker was lost ({why}), and {stuck}; send the request again")
        if self._moves >= self._moves_max:
            raise UnavailableError(f"the worker was lost ({why}) after {self._moves} moves", retry_after_s=1)
        self._moves += 1
        ask.attempt += 1
        ask.excluded.add(lease.incarnation)
        produced = [len(choice.produced) for choice in self.choices if not choice.done]
        ask.prompt_tokens = len(self._job.prompt) + max(produced)
        ask.max_tokens = self._job.sampling.max_tokens - min(produced)
        ask.choices = len(produced)
        ask.block_hashes = await self._left_hashes()
        log.warning("moving a response", extra={"response": ask.response_id, "attempt": ask.attempt, "reason": why})
        return await self._routers.acquire(ask)

    async def _left_hashes(self) -> bytes:
        """Of what will be submitted; of the prompt alone when several choices go on, because they differ after it."""
        left = [choice for choice in self.choices if not choice.done]
        return await continued(self._hashes, self._job, left[0].produced) if len(left) == 1 else self._hashes

    def _complete(self) -> bool:
        """End choices that have all their tokens and lost only the word that they ended; whether none is left."""
        for choice in self.choices:
            tokens = len(choice.produced)
            if not choice.done and tokens >= self._job.sampling.max_tokens:
                choice.on_finish(FinishReason.LENGTH, 0, choice.cached_tokens or 0, tokens, "")
        return all(choice.done for choice in self.choices)

    def _give_way(self) -> bool:
        """Stop before the first token, at once: what is on its way would reach the client otherwise."""
        if self._ended.done() or any(choice.produced for choice in self.choices):
            return False
        self._abort()
        self._end(_GaveWay())
        return True

    def _abort(self) -> None:
        """Stop whatever still runs of this attempt; one message for all of it."""
        if self._link is not None and self._handles:
            self._link.abort(list(self._handles.values()))
        self._handles.clear()

    def choice_ended(self, choice: Choice, *, early: bool) -> None:
        """See `Owner`."""
        handle = self._handles.pop(choice, None)
        if early and handle is not None and self._link is not None:
            self._link.abort([handle])
        if all(each.done for each in self.choices):
            self._end(None)

    def choice_failed(self, choice: Choice, error: PenstockError) -> None:
        """See `Owner`: one failed choice fails the response."""
        self._end(error)

    def choice_refused(self, choice: Choice) -> None:
        """See `Owner`."""
        self._end(_Refused())

    def choice_lost(self, choice: Choice, why: str) -> None:
        """See `Owner`."""
        self._end(_Lost(why))

    def finish_error(self, reason: FinishReason, detail: str) -> PenstockError:
        """See `Owner`."""
        if reason is FinishReason.DEADLINE:
            return DeadlineError("the deadline passed before the answer was complete")
        if reason is FinishReason.INVALID:
            return InvalidRequestError(detail or "the engine refused the parameters")
        return EngineError(detail or f"the engine ended the answer: {reason.name.lower()}", retry_after_s=1)

    def _end(self, error: Exception | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)


def _visible_ends(job: Job) -> frozenset[int]:
    """End tokens of the model that are not special, so that the detokenizer would show them."""
    ends = (*job.text.meta.eos_token_ids, *job.sampling.stop_token_ids)
    return frozenset(token for token in ends if job.text.vocabulary.detokenizer().push((token,)))
