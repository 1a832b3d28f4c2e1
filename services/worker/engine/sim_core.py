"""A continuous-batching engine without a model: pure, its only clock is the duration that each step reports.

It schedules as vLLM does (running sequences first, then waiting ones by priority and arrival; chunked prefill under a
token budget; preemption by recomputation when KV blocks run out; a prefix cache of full blocks), so that what is built
on top meets the same waits, evictions and batch sizes. A step takes

    base_ms + prefill_tokens / prefill_tokens_per_s + per_sequence_ms * decoding sequences

or `step_ms` when that is set.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from services.common import blocks
from services.common.frames import FinishReason
from services.worker.engine import sim_tokens
from services.worker.engine.base import EngineLoad, EngineStep, Finish, StepCost
from services.worker.engine.kv_pool import KvPool

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    import numpy as np
    import numpy.typing as npt

    from services.worker.engine.base import EngineRequest

KV_BLOCK = blocks.BLOCK_TOKENS
"""Tokens per KV block."""
_MASK = sim_tokens.BLOCK - 1


@dataclass(frozen=True, slots=True)
class SimModel:
    """What the simulated hardware costs and holds."""

    prefill_tokens_per_s: float = 8_000.0
    base_ms: float = 6.0
    per_sequence_ms: float = 0.35
    step_ms: float = 0.0
    """Fixed time of every step; 0 = by the formula."""
    kv_tokens: int = 524_288
    max_running: int = 256
    max_batched_tokens: int = 2_048
    """Tokens computed in one step."""

    def duration_s(self, prefill_tokens: int, decoding: int) -> float:
        """Seconds of a step."""
        if self.step_ms:
            return self.step_ms / 1e3
        return (self.base_ms + self.per_sequence_ms * decoding) / 1e3 + prefill_tokens / self.prefill_tokens_per_s


@dataclass(slots=True, eq=False)
class _Seq:
    """A sequence. Its KV cache holds `computed` of its `length` known tokens."""

    id: int
    order: tuple[int, int]  # priority, arrival
    key: int
    keys: list[bytes]  # of every full block of known tokens
    root: bytes
    tail: list[int]  # known tokens after the last full block
    length: int
    index: int  # of the next token
    end: int  # index after the last token
    end_reason: FinishReason
    min_end: int  # stop tokens count from here
    stop_ids: frozenset[int]
    top: int | None
    reported: bool = False  # its cache hit
    computed: int = 0
    held: int = 0  # leading keys that it holds
    private: int = 0
    hit: int = 0  # cached tokens, expected until it runs
    block: list[int] = field(default_factory=list)  # of the answer, around `index`


class SimCore:
    """The engine's state; `step` moves it on by one step. `version` names the model in the hashes of its blocks."""

    def __init__(self, model: SimModel, vocabulary: npt.NDArray[np.uint32], version: str = "") -> None:
        self.model = model
        self.pool = KvPool(model.kv_tokens // KV_BLOCK)
        self._version = version
        self._vocabulary = vocabulary
        self._vocabulary_list: list[int] = vocabulary.tolist()
        self._budget = max(model.max_batched_tokens, model.max_running)
        self._arrivals = 0
        self._waiting: list[tuple[tuple[int, int], _Seq]] = []
        self._prefilling: list[_Seq] = []
        self._decoding: list[_Seq] = []

    @property
    def busy(self) -> bool:
        """There is something to step."""
        return bool(self._waiting or self._prefilling or self._decoding)

    def submit(self, request: EngineRequest) -> None:
        """Queue a sequence. Prompt and max_tokens together must fit into `kv_tokens`."""
        sampling, first = request.sampling, request.first_index
        key = sim_tokens.answer_key(
            request.tokens[: request.prompt_tokens],
            sampling.seed if sampling.HasField("seed") else None,
            request.choice,
        )
        limit = first + sampling.max_tokens
        natural = max(sim_tokens.natural_length(key), first + max(1, sampling.min_tokens))
        stops = not sampling.ignore_eos and natural <= limit
        root = blocks.root(self._version, request.lora, request.cache_salt)
        tokens: list[int] = request.tokens.tolist()
        seq = _Seq(
            id=request.id,
            order=(request.priority, self._arrivals),
            key=key,
            keys=blocks.split(blocks.chain(root, tokens)),
            root=root,
            tail=tokens[len(tokens) // KV_BLOCK * KV_BLOCK :],
            length=len(tokens),
            index=first,
            end=natural if stops else limit,
            end_reason=FinishReason.STOP if stops else FinishReason.LENGTH,
            min_end=first + sampling.min_tokens,
            stop_ids=frozenset(sampling.stop_token_ids),
            top=sampling.logprobs if sampling.HasField("logprobs") else None,
        )
        seq.hit = self._match(seq) * KV_BLOCK
        self._arrivals += 1
        heapq.heappush(self._waiting, (seq.order, seq))

    def abort(self, ids: Collection[int]) -> None:
        """Forget sequences and free what they hold."""
        gone = set(ids)
        for seq in [*self._decoding, *self._prefilling]:
            if seq.id in gone:
                self._free(seq)
        self._decoding = [seq for seq in self._decoding if seq.id not in gone]
        self._prefilling = [seq for seq in self._prefilling if seq.id not in gone]
        self._waiting = [entry for entry in self._waiting if entry[1].id not in gone]
        heapq.heapify(self._waiting)

    def load(self) -> EngineLoad:
        """The load now."""
        queued = [seq for _, seq in self._waiting]
        return EngineLoad(
            running=len(self._decoding) + len(self._prefilling),
            waiting=len(self._waiting),
            free_kv_blocks=self.pool.free,
            queued_prefill_tokens=sum(seq.length - seq.hit for seq in queued)
            + sum(seq.length - seq.computed for seq in self._prefilling),
        )

    def step(self) -> EngineStep:
        """One step: who computes what, and the tokens that come of it. `cost` is always set."""
        preempted = self._grow_decoding()
        budget = self._budget - len(self._decoding)
        chunks, yielded = self._grow_prefilling(budget)
        if not preempted and not yielded:
            chunks += self._admit(budget - sum(chunks))
        out, decoding = EngineStep(), self._decoding
        prefilled = [seq for seq in self._prefilling if seq.computed == seq.length]
        if prefilled:
            self._prefilling = [seq for seq in self._prefilling if seq.computed != seq.length]
        for seq in decoding:
            seq.computed += 1
        self._emit(decoding + prefilled, out)
        ended = {finish.id for finish in out.finishes}
        everyone = decoding + prefilled
        self._decoding = [seq for seq in everyone if seq.id not in ended] if ended else everyone
        prefill = sum(chunks)
        out.cost = StepCost(
            step_ms=self.model.duration_s(prefill, len(decoding)) * 1e3,
            prefill_tokens=prefill,
            running=len(everyone) + len(self._prefilling),
        )
        return out

    def _emit(self, seqs: Sequence[_Seq], out: EngineStep) -> None:
        """The next token of each."""
        for seq in seqs:
            index = seq.index
            at = index & _MASK
            if at == 0 or not seq.block:
                seq.block = sim_tokens.answer_tokens(seq.key, index - at, sim_tokens.BLOCK, self._vocabulary)
            token = seq.block[at]
            out.ids.append(seq.id)
            out.tokens.append(token)
            if seq.top is not None:
                own, others = sim_tokens.logprobs(seq.key, index, token, seq.top, self._vocabulary_list)
                out.logprobs.append((len(out.tokens) - 1, own, others))
            if not seq.reported:
                seq.reported = True
                out.cached.append((seq.id, seq.hit))
            if not seq.computed % KV_BLOCK:
                self._publish(seq)
            self._append(seq, token)
            if seq.index == seq.end or token in seq.stop_ids:
                self._end(seq, token, out)
        out.counts = [1] * len(out.ids)

    def _end(self, seq: _Seq, token: int, out: EngineStep) -> None:
        stopped = token in seq.stop_ids and seq.index >= seq.min_end
        if not stopped and seq.index < seq.end:
            return
        out.finishes.append(Finish(seq.id, FinishReason.STOP if stopped else seq.end_reason))
        self._free(seq)

    def _append(self, seq: _Seq, token: int) -> None:
        seq.index += 1
        seq.length += 1
        seq.tail.append(token)
        if len(seq.tail) == KV_BLOCK:
            seq.keys.append(blocks.chain(seq.keys[-1] if seq.keys else seq.root, seq.tail))
            seq.tail = []

    def _grow_decoding(self) -> bool:
        """A block for each decoding sequence whose last one is full; whether someone had to yield for it."""
        preempted = False
        for seq in [seq for seq in self._decoding if not seq.computed % KV_BLOCK]:
            while not self.pool.free and seq in self._decoding:
                self._preempt()
                preempted = True
            if not preempted or seq in self._decoding:
                self.pool.take(1)
                seq.private += 1
        return preempted

    def _grow_prefilling(self, budget: int) -> tuple[list[int], bool]:
        """Another chunk for each sequence in prefill, as far as budget and blocks go; whether someone had to yield."""
        chunks, preempted = [], False
        for seq in list(self._prefilling):
            slack = -seq.computed % KV_BLOCK
            while not self.pool.free and not slack and seq in self._prefilling:
                self._preempt()
                preempted = True
            chunk = min(budget, seq.length - seq.computed, self.pool.free * KV_BLOCK + slack)
            if chunk > 0 and (not preempted or seq in self._prefilling):
                self._compute(seq, chunk)
                chunks.append(chunk)
                budget -= chunk
        return chunks, preempted

    def _preempt(self) -> None:
        """The least urgent running sequence gives its blocks back and waits in its old place."""
        victim = max([*self._decoding, *self._prefilling], key=lambda seq: seq.order)
        (self._decoding if victim in self._decoding else self._prefilling).remove(victim)
        self._free(victim)
        victim.computed = 0
        victim.hit = self._match(victim) * KV_BLOCK
        heapq.heappush(self._waiting, (victim.order, victim))

    def _admit(self, budget: int) -> list[int]:
        """Start waiting sequences, most urgent first, until one doesn't fit; the chunks that they compute."""
        chunks = []
        while self._waiting and budget > 0 and len(self._decoding) + len(self._prefilling) < self.model.max_running:
            seq = self._waiting[0][1]
            matched = self._match(seq)
            chunk = min(budget, seq.length - matched * KV_BLOCK)
            if -(-chunk // KV_BLOCK) + self.pool.cost(seq.keys[:matched]) > self.pool.free:
                break
            heapq.heappop(self._waiting)
            self.pool.hold(seq.keys[:matched])
            seq.held, seq.computed, seq.hit = matched, matched * KV_BLOCK, matched * KV_BLOCK
            self._compute(seq, chunk)
            self._prefilling.append(seq)
            chunks.append(chunk)
            budget -= chunk
        return chunks

    def _compute(self, seq: _Seq, chunk: int) -> None:
        """Fill the KV cache with `chunk` more tokens."""
        seq.computed += chunk
        fresh = -(-seq.computed // KV_BLOCK) - seq.held - seq.private
        self.pool.take(fresh)
        seq.private += fresh
        self._publish(seq)

    def _publish(self, seq: _Seq) -> None:
        for key in seq.keys[seq.held : seq.computed // KV_BLOCK]:
            self.pool.publish(key)
            seq.held += 1
            seq.private -= 1

    def _free(self, seq: _Seq) -> None:
        self.pool.release(seq.keys[: seq.held], seq.private)
        seq.held = seq.private = 0

    def _match(self, seq: _Seq) -> int:
        """Cached full blocks; the last token is always computed, or there would be nothing to sample from."""
        return self.pool.match(seq.keys[: (seq.length - 1) // KV_BLOCK])
