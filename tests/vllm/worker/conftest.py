"""Real workers with vLLM, started once for all tests of this folder: each start takes 20 s and more."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file

from services.worker.guardian import shared_memory
from tests.integration.worker.harness import NANO, ROOT, group_members

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START_S = 180.0
SPECULATION = {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 3, "prompt_lookup_min": 1}


@dataclass(frozen=True)
class VllmWorker:
    """A worker process under its guardian."""

    guardian: subprocess.Popen[bytes]
    pid: int
    address: str
    incarnation: int
    card_hash: str


@contextlib.contextmanager
def start(folder: Path, *argv: str) -> Iterator[VllmWorker]:
    """A worker on nano, until the end of the block."""
    announce, stderr = folder / "announce.json", folder / "stderr.log"
    command = [sys.executable, "-m", "services.worker", "--engine", "vllm", "--model", NANO, "--served-model-name",
               "nano", "--announce", str(announce), *argv]  # fmt: skip
    with stderr.open("wb") as log:
        guardian = subprocess.Popen(command, stderr=log, cwd=ROOT)
    worker = None
    try:
        deadline = time.monotonic() + START_S
        while not announce.exists():
            assert guardian.poll() is None, stderr.read_text()[-4_000:]
            assert time.monotonic() < deadline, stderr.read_text()[-4_000:]
            time.sleep(0.05)  # a file tells nobody that it is there
        said = json.loads(announce.read_text())
        lines = [json.loads(line) for line in stderr.read_text().splitlines() if line.startswith("{")]
        (up,) = (line for line in lines if line["message"] == "worker up")
        worker = VllmWorker(guardian, said["pid"], said["grpc"], up["incarnation"], up["card"])
        yield worker
    finally:
        leftovers = shared_memory(worker.pid) if worker is not None else set()
        guardian.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            guardian.wait(30)
        guardian.kill()
        guardian.wait()
        assert worker is None or group_members(worker.pid) == []
        assert not [path for path in leftovers if path.exists()]


@pytest.fixture(scope="session")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hand-made LoRA adapter of rank 8 that turns every attention layer of nano."""
    folder = tmp_path_factory.mktemp("adapter")
    random = np.random.default_rng(7)
    tensors = {}
    for layer in range(4):
        for name, width in (("q_proj", 192), ("v_proj", 64)):
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{prefix}.lora_A.weight"] = random.normal(0, 0.5, (8, 192)).astype(np.float32)
            tensors[f"{prefix}.lora_B.weight"] = random.normal(0, 0.5, (width, 8)).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj", "v_proj"], "bias": "none",
              "task_type": "CAUSAL_LM", "base_model_name_or_path": NANO}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, adapter: Path) -> Iterator[VllmWorker]:
    """TP=1, with the adapter `poet`."""
    flags = ("--max-sequences", "24", "--", "--lora-modules", f"poet={adapter}", "--max-lora-rank", "8")
    with start(tmp_path_factory.mktemp("plain"), *flags) as worker:
        yield worker


@pytest.fixture
def two(tmp_path: Path) -> Iterator[VllmWorker]:
    """Tensor parallel over two processes."""
    with start(tmp_path, "--tensor-parallel-size", "2") as worker:
        yield worker


@pytest.fixture
def speculating(tmp_path: Path) -> Iterator[VllmWorker]:
    """N-gram speculation: steps with several tokens per sequence."""
    with start(tmp_path, "--", "--speculative-config", json.dumps(SPECULATION)) as worker:
        yield worker
