"""What a worker needs of an engine, and the columns that pass between them.

The worker submits `EngineRequest`s and iterates `steps()`: one `EngineStep` per step of the engine, holding the tokens
of every sequence at once, so that the cost per token falls as the batch grows. Ids are the worker's own numbers, one
per sequence, never reused. After `abort` an engine may still report an id for a step; the worker drops it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    import numpy as np
    import numpy.typing as npt
    from penstock.v1 import engine_pb2

    from services.common.card import Capability
    from services.common.frames import FinishReason


class EngineDeadError(RuntimeError):
    """The engine can't go on; the process must end and be started again."""


class EngineStartError(RuntimeError):
    """The engine can't be started with these settings; the message says what to change."""


@dataclass(slots=True)
class EngineRequest:
    """One sequence. The worker has checked sizes, ids and ranges; the engine may still refuse (INVALID)."""

    id: int
    tokens: npt.NDArray[np.uint32]
    """Prompt, then the tokens that were already produced elsewhere; shape (n,)."""
    prompt_tokens: int
    """How many of `tokens` are the prompt."""
    choice: int
    sampling: engine_pb2.SamplingParams
    priority: int = 0
    """Lower is more urgent."""
    cache_salt: str = ""
    lora: str = ""

    @property
    def first_index(self) -> int:
        """Index of the first token to produce."""
        return len(self.tokens) - self.prompt_tokens


@dataclass(slots=True)
class Finish:
    """The end of a sequence."""

    id: int
    reason: FinishReason
    detail: str = ""


@dataclass(slots=True)
class StepCost:
    """What one step cost, for the router's step-time model."""

    step_ms: float
    prefill_tokens: int
    running: int


Logprob = tuple[int, float, list[tuple[int, float]]]
"""Position in `EngineStep.tokens`, log probability, alternatives as (token, log probability), best first."""


@dataclass(slots=True)
class EngineStep:
    """One step of the engine. Row i: sequence `ids[i]` produced the next `counts[i]` (at least 1) of `tokens`."""

    ids: list[int] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    cached: list[tuple[int, int]] = field(default_factory=list)
    """(id, prompt tokens found in the prefix cache), once per sequence, not after its first tokens."""
    finishes: list[Finish] = field(default_factory=list)
    logprobs: list[Logprob] = field(default_factory=list)
    cost: StepCost | None = None
    """None when the step wasn't measured, or was no step of the model (refusals)."""


@dataclass(slots=True)
class KvChange:
    """What the prefix cache gained and lost, as hashes of 16-token blocks (`services.common.blocks`)."""

    stored: list[bytes]
    removed: list[bytes] = field(default_factory=list)
    snapshot: bool = False
    """`stored` is all that there is; what was told before is void."""

    def __bool__(self) -> bool:
        """It says something."""
        return bool(self.stored or self.removed or self.snapshot)


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """Load at this moment."""

    running: int
    waiting: int
    free_kv_blocks: int
    queued_prefill_tokens: int
    """Prompt tokens that are neither computed nor known to be cached."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an engine can do; known after `start`."""

    kind: str
    context_length: int
    kv_blocks: int
    kv_block_size: int
    capabilities: tuple[Capability, ...]
    loras: tuple[str, ...] = ()
    kv_events: bool = False
    """`kv_events()` tells what the prefix cache holds."""


class Engine(Protocol):
    """An engine. All methods belong to one event loop; only `start`, `steps` and `stop` wait."""

    async def start(self) -> EngineInfo:
        """Load the model and warm it up with a dummy request.

        Raises:
            EngineStartError: the settings can't work.
        """

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        """Accept sequences. A refusal comes as a finish (INVALID) in a step."""

    def abort(self, ids: Sequence[int]) -> None:
        """Stop these sequences, in one engine call; ids that have ended are ignored. They get no finish."""

    def steps(self) -> AsyncGenerator[EngineStep, None]:
        """The engine's steps, until `stop`. One consumer, that does not wait between steps.

        Raises:
            EngineDeadError: the engine failed for good.
        """

    def kv_events(self) -> AsyncGenerator[KvChange, None]:
        """What the prefix cache gains and loses, from empty, until `stop`. One consumer; only with `info.kv_events`."""

    def load(self) -> EngineLoad:
        """The load now."""

    async def stop(self) -> None:
        """Give back everything. Idempotent."""
