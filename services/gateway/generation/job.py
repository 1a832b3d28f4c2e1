"""What is to be generated: a request after validation, templating and tokenization."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Literal

import numpy as np
import orjson

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from penstock.v1 import dispatch_pb2, engine_pb2

    from services.common.tenants import Tenant
    from services.gateway.generation.choice import ToolParser
    from services.gateway.text.models import TextModel

CacheState = Literal["hit", "shared", "miss", "off"]
"""`shared`: it waited for the answer that another request of the same was getting."""


@dataclass(slots=True)
class Job:
    """One response to make. `prompt` holds token ids; `sampling.max_tokens` is set."""

    response_id: str
    model: str
    text: TextModel
    prompt: Sequence[int]
    sampling: engine_pb2.SamplingParams
    choices: int
    tenant: Tenant
    priority_class: dispatch_pb2.PriorityClass.ValueType
    deadline: float | None
    """Event-loop time; None = none."""
    stops: tuple[str, ...] = ()
    tools: Callable[[int], ToolParser] | None = None
    """Makes the parser of a choice, given its number; None = text is text."""
    use_cache: bool = False
    session: str = ""
    """Stable key of the conversation that it belongs to; empty = none."""
    arrived: float = field(default=0.0)
    """Event-loop time at which the request was read."""

    @property
    def lora(self) -> str:
        """The adapter's name, or empty for the base model."""
        return "" if self.model == self.text.meta.model else self.model

    @property
    def cache_key(self) -> bytes:
        """32 bytes over everything that shapes the tokens and where they end, and the tenant (DESIGN 2.10)."""
        digest = blake2b(digest_size=32, person=b"penstock-resp")
        sampling = self.sampling.SerializeToString(deterministic=True)
        stops = orjson.dumps(self.stops)
        parts = (
            self.tenant.id.encode(), self.text.meta.version.encode(), self.model.encode(), sampling, stops,
            str(self.choices).encode(), np.asarray(self.prompt, dtype="<u4").tobytes(),
        )  # fmt: skip
        for part in parts:
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return digest.digest()

    def movable_after_first_token(self) -> str:
        """Empty, or why the response can't go on elsewhere once tokens were produced (DESIGN 4)."""
        sampling = self.sampling
        if sampling.WhichOneof("structured"):
            return "structured output cannot be continued on another worker"
        if sampling.presence_penalty or sampling.frequency_penalty:
            return "presence and frequency penalties cannot be continued on another worker"
        return ""
