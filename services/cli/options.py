"""What `penstock up` was asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Engine = Literal["vllm", "sim"]
BUNDLED_MODEL = Path(__file__).resolve().parents[2] / "models" / "nano"
DEFAULT_STATE_DIR = Path(".penstock")


class UpOptions(BaseModel):
    """The flags of `penstock up`, checked one by one; `plan` checks them together."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine: Engine = "vllm"
    model: str = str(BUNDLED_MODEL)
    """Directory or Hugging Face id."""
    workers: int = Field(default=1, ge=1, le=64)
    gateways: int = Field(default=1, ge=1, le=64)
    routers: int = Field(default=1, ge=1, le=16)
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    pipeline_parallel_size: int = Field(default=1, ge=1, le=64)
    http_port: int = Field(default=8000, ge=0, le=65_535)
    """HTTP port of the first gateway; 0 = any free one."""
    grpc_port: int = Field(default=8001, ge=0, le=65_535)
    """gRPC port of the first gateway; 0 = any free one."""
    redis: str = ""
    """URL of a Redis for the cache; empty = a private one where redis-server is installed."""
    embedded: bool = False
    """No Redis: the cache is in its process alone."""
    state_dir: Path = DEFAULT_STATE_DIR
    start_timeout_s: float = Field(default=1800.0, gt=0, le=86_400)
    """Seconds in which every process must have become healthy."""
    engine_args: tuple[str, ...] = ()
    """vLLM's own flags."""
