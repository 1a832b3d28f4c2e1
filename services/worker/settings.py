"""Settings of a worker. What follows `--` on the command line are vLLM's own engine flags."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator

from services.common.settings import Addresses, Port, ServiceSettings

Positive = Annotated[int, Field(gt=0)]


class WorkerSettings(ServiceSettings):
    """One engine, its listening address, and the routers that it serves."""

    port: Port = 0
    """Port of the Attach service; 0 = any free one."""
    advertise: str = Field(default="", validate_default=True)
    """host or host:port that gateways dial; empty = where it listens. Needed when it listens on 0.0.0.0."""
    routers: Addresses = ()
    """Routers to register with, all of them, as host:port,host:port. None = serves only who knows its address."""
    engine: Literal["vllm", "sim"] = "vllm"
    """vllm = a real model; sim = a simulator that needs no weights, only a tokenizer."""
    model: str = Field(min_length=1)
    """Folder in Hugging Face layout, or the id of a model on the hub."""
    revision: str = ""
    """Branch, tag or commit of a hub id; empty = its main branch."""
    served_model_name: str = ""
    """Name that clients ask for; empty = `model` as given."""
    tensor_parallel_size: Positive = 1
    """GPUs (or CPU ranges) that share each layer."""
    pipeline_parallel_size: Positive = 1
    """GPUs (or nodes) that share the layers. vLLM's CPU backend can't do more than 1."""
    max_sequences: int = Field(default=256, gt=0, le=65_536)
    """Hard cap on accepted sequences, waiting ones included; what is over is refused at once."""
    gateway_lag_bytes: int = Field(default=8 * 1024 * 1024, gt=0)
    """Unread bytes at which a gateway is disconnected."""
    gateway_lag_s: float = Field(default=5.0, gt=0)
    """Age of the oldest unread frame, in seconds, at which a gateway is disconnected."""
    kv_events: bool = True
    """Tell routers what the prefix cache holds, so that requests go where their prompt is cached."""
    sim_step_ms: float = Field(default=0.0, ge=0, le=60_000)
    """Fixed time of each simulated step; 0 = by the cost model of the next settings."""
    sim_base_ms: float = Field(default=6.0, ge=0, le=60_000)
    """Milliseconds of a simulated step without sequences."""
    sim_per_sequence_ms: float = Field(default=0.35, ge=0, le=1_000)
    """Milliseconds that each decoding sequence adds to a simulated step."""
    sim_prefill_tokens_per_s: float = Field(default=8_000.0, gt=0)
    """Prompt tokens that the simulator computes in a second."""
    sim_kv_tokens: int = Field(default=524_288, ge=1_024)
    """Tokens that the simulated KV cache holds."""
    sim_max_batched_tokens: int = Field(default=2_048, ge=16)
    """Tokens that one simulated step computes at most."""
    sim_context_length: int = Field(default=131_072, gt=1)
    """Context length of the simulated model."""

    @field_validator("advertise")
    @classmethod
    def _advertised(cls, value: str, info: ValidationInfo) -> str:
        if not value and info.data.get("host") in {"0.0.0.0", "::", ""}:
            raise ValueError("needed when --host is all interfaces, gateways can't dial those")
        return value

    @property
    def served_name(self) -> str:
        """Name of the base model for clients."""
        return self.served_model_name or self.model

    @property
    def worker_id(self) -> str:
        """Stable name of this worker."""
        return self.name or "worker"
