"""A simulated worker, coarse enough for hours of long prompts: costs and rules of the worker's own simulator.

Continuous batching with chunked prefill, a prefix cache with LRU eviction, first come first served within a class. It
differs from `services.worker.engine.sim_core` in what makes that one slow: it has no tokens; it caches whole 512-token
blocks of the trace (counted in KV blocks of 16); a sequence takes the room of its whole answer when it starts, so
nobody is preempted; and steps that only decode are taken many at once.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bench.simulate.traces import BLOCK_TOKENS

if TYPE_CHECKING:
    from bench.simulate.traces import Call

KV_BLOCK = 16
PER_BLOCK = BLOCK_TOKENS // KV_BLOCK
_STEPS_MAX = 16


@dataclass(frozen=True, slots=True)
class Costs:
    """What the simulated hardware costs and holds."""

    prefill_tokens_per_s: float = 8_000.0
    base_ms: float = 6.0
    per_sequence_ms: float = 0.35
    kv_tokens: int = 524_288
    max_running: int = 256
    max_batched_tokens: int = 2_048

    def step_s(self, prefill_tokens: int, decoding: int) -> float:
        """Seconds of one step."""
        return (self.base_ms + self.per_sequence_ms * decoding) / 1e3 + prefill_tokens / self.prefill_tokens_per_s


@dataclass(slots=True, eq=False)
class Sequence:
    """A call on a worker."""

    number: int
    call: Call
    hit: int = 0
    """Cached tokens, expected until it runs."""
    computed: int = 0
    held: int = 0
    """Leading trace blocks that it holds in the cache."""
    private: int = 0
    """KV blocks of its own: answer, and prompt that isn't in the cache."""
    left: int = 0
    """Answer tokens to generate after the first."""


@dataclass(slots=True)
class Progress:
    """What a step brought about."""

    first_tokens: list[Sequence] = field(default_factory=list)
    ended: list[Sequence] = field(default_factory=list)


class Worker:
    """One engine. Call `submit`, and `advance` at `due`."""

    def __init__(self, number: int, costs: Costs) -> None:
        self.number = number
        self.costs = costs
        self.capacity = costs.kv_tokens // KV_BLOCK
        self.due = math.inf
        """End of the step, or of the run of steps, that goes on."""
        self.queued = 0
        """Uncached prompt tokens not computed yet."""
        self.started: list[int] = []
        self.finished: list[int] = []
        self.stored: dict[int, int] = {}
        self.removed: dict[int, int] = {}
        self.steps: list[tuple[float, int, int]] = []
        self._waiting: list[tuple[int, int, Sequence]] = []
        self._prefilling: list[Sequence] = []
        self._decoding: list[Sequence] = []
        self._active: dict[int, int] = {}
        self._size: dict[int, int] = {}
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._active_blocks = self._idle_blocks = self._private = 0
        self._anonymous = -1
        self._began = 0.0
        self._run = 0
        self._step_s = 0.0
        self._chunks: list[tuple[Sequence, int]] = []

    @property
    def running(self) -> int:
        """Sequences in the batch."""
        return len(self._prefilling) + len(self._decoding)

    @property
    def waiting(self) -> int:
        """Sequences not in the batch yet."""
        return len(self._waiting)

    @property
    def free(self) -> int:
        """KV blocks that can be taken, idle ones included."""
        return self.capacity - self._private - self._active_blocks

    def wait_s(self) -> float:
        """Until a prompt that came now would begin to be computed."""
        costs, decoding = self.costs, len(self._decoding)
        chunks = self.queued / costs.max_batched_tokens
        return self.queued / costs.prefill_tokens_per_s + chunks * costs.step_s(0, decoding)

    def matched(self, call: Call) -> int:
        """Tokens of the prompt that are cached now; one at least is left to compute."""
        blocks, whole = 0, (call.prompt - 1) // KV_BLOCK
        for block in call.blocks:
            size = self._size.get(block, 0)
            blocks += size
            if size < PER_BLOCK:
                break
        return min(blocks, whole) * KV_BLOCK

    def submit(self, now: float, number: int, call: Call) -> None:
        """Queue a call."""
        if call.prompt + call.output > self.costs.kv_tokens:
            raise ValueError(f"request {number}: {call.prompt} + {call.output} tokens don't fit into a worker")
        sequence = Sequence(number, call, hit=self.matched(call), left=call.output - 1)
        self.queued += call.prompt - sequence.hit
        heapq.heappush(self._waiting, (call.priority_class, number, sequence))
        if self.due == math.inf:
            self._begin(now)
        elif self._run > 1:
            done = min(self._run, int((now - self._began) / self._step_s) + 1)
            self._run, self.due = done, self._began + done * self._step_s

    def advance(self, now: float) -> Progress:
        """The step that ends at `due` is over; the next one begins."""
        progress = Progress()
        decoding, run = self._decoding, self._run
        for sequence in decoding:
            sequence.left -= run
        progress.ended = [sequence for sequence in decoding if sequence.left <= 0]
        for sequence, chunk in self._chunks:
            self._compute(sequence, chunk)
            if sequence.computed == sequence.call.prompt:
                progress.first_tokens.append(sequence)
        prefill = sum(chunk for _, chunk in self._chunks)
        if len(self.steps) < _STEPS_MAX:
            self.steps.append((self._step_s * 1e3, prefill, self.running))
        first = progress.first_tokens
        if first:
            self._prefilling = [each for each in self._prefilling if each.computed < each.call.prompt]
            progress.ended += [sequence for sequence in first if sequence.left <= 0]
        if first or progress.ended:
            self._decoding = [sequence for sequence in decoding + first if sequence.left > 0]
        for sequence in progress.ended:
            self._free(sequence)
        self._begin(now)
        return progress

    def _begin(self, now: float) -> None:
        """Start the next step, if there is anything to do."""
        self._admit()
        decoding = len(self._decoding)
        if not self._prefilling and not decoding:
            self.due = math.inf
            return
        budget, self._chunks = self.costs.max_batched_tokens - decoding, []
        for sequence in self._prefilling:
            chunk = min(budget, sequence.call.prompt - sequence.computed)
            if chunk <= 0:
                break
            self._chunks.append((sequence, chunk))
            budget -= chunk
        self._began, self._step_s = now, self.costs.step_s(self.costs.max_batched_tokens - decoding - budget, decoding)
        self._run = 1 if self._chunks or self._waiting else min(sequence.left for sequence in self._decoding)
        self.due = now + self._run * self._step_s

    def _admit(self) -> None:
        """Move waiting sequences into the batch, most urgent first, until the token budget or the KV cache is full."""
        planned = sum(sequence.call.prompt - sequence.computed for sequence in self._prefilling)
        budget = self.costs.max_batched_tokens - len(self._decoding)
        while self._waiting and planned < budget and self.running < self.costs.max_running:
            sequence = self._waiting[0][2]
            call = sequence.call
            hit = self.matched(call)
            held = -(-hit // BLOCK_TOKENS)
            need = -(-(call.prompt - hit + call.output) // KV_BLOCK)
            if need + sum(self._size[block] for block in call.blocks[:held] if block in self._idle) > self.free:
                break
            heapq.heappop(self._waiting)
            self.queued -= hit - sequence.hit
            sequence.hit = sequence.computed = hit
            for block in call.blocks[:held]:
                self._hold(block)
            sequence.held, sequence.private = held, need
            self._private += need
            self._make_room()
            self._prefilling.append(sequence)
            self.started.append(sequence.number)
            planned += call.prompt - hit

    def _compute(self, sequence: Sequence, chunk: int) -> None:
        """Publish what the chunk filled."""
        sequence.computed += chunk
        self.queued -= chunk
        call, end = sequence.call, sequence.computed
        while sequence.held < len(call.blocks):
            begin = sequence.held * BLOCK_TOKENS
            if end < min(begin + BLOCK_TOKENS, call.prompt):
                return
            size = min(call.prompt - begin, BLOCK_TOKENS) // KV_BLOCK
            block = call.blocks[sequence.held]
            if size == 0:
                return
            self._publish(sequence, block, size)
            sequence.held += 1

    def _publish(self, sequence: Sequence, block: int, size: int) -> None:
        known = self._size.get(block, 0)
        if known:
            self._hold(block)
        else:
            self._active[block] = 1
        grown = max(size - known, 0)
        if grown:
            self._size[block] = known + grown
            self._active_blocks += grown
            self.stored[block] = known + grown
            self.removed.pop(block, None)
        # A twin that somebody else published first is given back.
        sequence.private -= size
        self._private -= size

    def _hold(self, block: int) -> None:
        if block in self._active:
            self._active[block] += 1
        else:
            del self._idle[block]
            self._active[block] = 1
            self._idle_blocks -= self._size[block]
            self._active_blocks += self._size[block]

    def _free(self, sequence: Sequence) -> None:
        """Its blocks stay as idle ones, the answer's too though nobody can ask for them: they push others out."""
        self.finished.append(sequence.number)
        self._private -= sequence.private
        self._anonymous -= 1
        self._rest(self._anonymous, sequence.private)
        for block in reversed(sequence.call.blocks[: sequence.held]):
            left = self._active[block] - 1
            if left:
                self._active[block] = left
            else:
                del self._active[block]
                self._active_blocks -= self._size[block]
                self._rest(block, self._size[block])
        self._make_room()

    def _rest(self, block: int, size: int) -> None:
        if size:
            self._size[block] = size
            self._idle[block] = None
            self._idle_blocks += size

    def _make_room(self) -> None:
        while self._private + self._active_blocks + self._idle_blocks > self.capacity and self._idle:
            block, _ = self._idle.popitem(last=False)
            size = self._size.pop(block)
            self._idle_blocks -= size
            if block >= 0:
                self.removed[block] = size
                self.stored.pop(block, None)
