"""Settings of the router."""

from __future__ import annotations

import math
from typing import Annotated, Self

from pydantic import BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from services.common.settings import Port, ServiceSettings
from services.router.config import SchedulerConfig


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


class RouterSettings(ServiceSettings):
    """Flags and `PENSTOCK_*` variables of `python -m services.router`."""

    port: Port = 8100
    """gRPC port of Dispatch and Registry; 0 = any free one."""
    models: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)] = ()
    """Declared models, comma-separated: their requests wait for a worker even if none was ever seen."""
    queue_requests_max: int = Field(default=4096, ge=0, le=1_000_000)
    """Requests that may wait per model and class; 0 = none."""
    queue_tokens_max: int = Field(default=32 * 1024 * 1024, ge=1)
    """Prompt and answer tokens that may wait per model and class. A single request may always wait."""
    no_worker_wait_s: float = Field(default=10.0, ge=0, le=3600)
    """Seconds that a request of a known model waits for a first live worker."""
    worker_timeout_s: float = Field(default=2.0, gt=0, le=60)
    """A worker that is silent for so many seconds is out."""
    settle_s: float = Field(default=5.0, gt=0, le=600)
    """Seconds after the start in which an unseen model may still get its first worker, and isn't yet unknown."""
    prefix_blocks_max: int = Field(default=4_000_000, ge=1_000, le=100_000_000)
    """Cached 16-token blocks, of all workers, that are remembered; about 120 bytes each."""
    length_bounds: Annotated[tuple[int, ...], NoDecode, BeforeValidator(_split)] = (512, 2048)
    """Uncached prompt tokens that divide short, medium and long prompts; long ones leave room for short ones."""
    prefix_precision_min: float = Field(default=0.5, ge=0, le=1)
    """A worker whose predicted prefix hits come true less often than this is placed by load alone."""
    floor_interactive: float = Field(default=0.5, ge=0, le=1)
    """Share of a model's sequences that is kept for interactive requests while there are such."""
    floor_standard: float = Field(default=0.2, ge=0, le=1)
    """The same for standard ones."""
    floor_batch: float = Field(default=0.05, ge=0, le=1)
    """The same for batch ones. All three together are at most 1."""
    promote_standard_s: float = Field(default=10.0, gt=0)
    """While a standard request has waited longer, standard ones take a share of the turns of interactive ones."""
    promote_batch_s: float = Field(default=60.0, gt=0)
    """While a batch request has waited longer, batch ones take a share of the turns of standard ones."""
    output_weight: float = Field(default=2.0, gt=0, le=100)
    """What a generated token costs a tenant, in uncached prompt tokens."""
    backlog_ms_max: float = Field(default=250.0, gt=0)
    """Milliseconds of prefill that a worker may have before it and still get more; the rest waits here, in order."""
    preempts_max: int = Field(default=4, ge=0, le=1000)
    """Leases per model that may be asked back at a time for requests of a higher class; 0 = none ever."""
    gateway_unread_max: int = Field(default=65_536, ge=16, le=10_000_000)
    """Messages that a gateway may leave unread before it is cut off."""
    gateway_stall_s: float = Field(default=10.0, gt=0, le=600)
    """Seconds that a gateway may take nothing at all before it is cut off."""
    metrics_port: Port = 0
    """Port of the Prometheus endpoint; 0 = none."""

    @model_validator(mode="after")
    def _floors_fit(self) -> Self:
        if self.floor_interactive + self.floor_standard + self.floor_batch > 1:
            raise ValueError("floor_interactive, floor_standard and floor_batch are more than 1 together")
        return self

    def scheduler(self) -> SchedulerConfig:
        """The part that the decisions need."""
        return SchedulerConfig(
            models=self.models,
            queue_requests_max=self.queue_requests_max,
            queue_tokens_max=self.queue_tokens_max,
            no_worker_wait_s=self.no_worker_wait_s,
            worker_timeout_s=self.worker_timeout_s,
            settle_s=self.settle_s,
            floors=(self.floor_interactive, self.floor_standard, self.floor_batch),
            promote_after_s=(math.inf, self.promote_standard_s, self.promote_batch_s),
            output_weight=self.output_weight,
            backlog_ms_max=self.backlog_ms_max,
            preempts_max=self.preempts_max,
            length_bounds=self.length_bounds,
            prefix_blocks_max=self.prefix_blocks_max,
            prefix_precision_min=self.prefix_precision_min,
        )
