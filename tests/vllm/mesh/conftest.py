"""What the tests of real vLLM behind the whole mesh share: prompts, vLLM's own answers, a LoRA adapter."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from services.gateway.text.detokenizer import Vocabulary
from tests.e2e.harness import NANO, Mesh, start_mesh

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

QUESTIONS = (
    "Hello", "Who are you?", "What is Penstock?", "Tell me a story", "What does the router do?", "What is 2 + 3?",
    "What is a lease?", "Thanks!",
)  # fmt: skip
UP_S_MAX = 115.0


@dataclass(frozen=True)
class Answer:
    """vLLM's own greedy answer: token ids, and the two best log probabilities at each."""

    tokens: list[int]
    best: list[list[float]]


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """nano's."""
    return Tokenizer.from_file(str(NANO / "tokenizer.json"))


@pytest.fixture(scope="session")
def vocabulary(tokenizer: Tokenizer) -> Vocabulary:
    """nano's, as the gateway reads it."""
    return Vocabulary.from_tokenizer(tokenizer, vocab_size=tokenizer.get_vocab_size())


@pytest.fixture(scope="session")
def prompts(tokenizer: Tokenizer) -> list[list[int]]:
    """Rendered chats as token ids."""
    chats = (f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in QUESTIONS)
    return [tokenizer.encode(chat, add_special_tokens=False).ids for chat in chats]


def _reference(folder: Path, prompts: list[list[int]], lora: Path | None = None) -> list[Answer]:
    asked, out = folder / "prompts.json", folder / "answers.json"
    asked.write_text(json.dumps(prompts))
    command = [sys.executable, "-m", "tests.vllm.mesh.reference", str(NANO), str(asked), str(out)]
    done = subprocess.run(
        [*command, *([str(lora)] if lora else [])], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [Answer(**answer) for answer in json.loads(out.read_text())]


@pytest.fixture(scope="session")
def reference(tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]]) -> list[Answer]:
    """vLLM called directly."""
    return _reference(tmp_path_factory.mktemp("reference"), prompts)


@pytest.fixture(scope="session")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A rank-8 LoRA adapter on q_proj and v_proj, with random weights large enough to change answers."""
    folder = tmp_path_factory.mktemp("adapter")
    config = json.loads((NANO / "config.json").read_text())
    head = config["head_dim"]
    outs = {"q_proj": config["num_attention_heads"] * head, "v_proj": config["num_key_value_heads"] * head}
    random = np.random.default_rng(7)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, out in outs.items():
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{prefix}.lora_A.weight"] = random.normal(0, 0.3, (8, config["hidden_size"])).astype(np.float32)
            tensors[f"{prefix}.lora_B.weight"] = random.normal(0, 0.3, (out, 8)).astype(np.float32)
    save_file(tensors, folder / "adapter_model.safetensors")
    described = {
        "peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 8, "lora_alpha": 8, "lora_dropout": 0.0, "bias": "none",
        "target_modules": list(outs), "base_model_name_or_path": str(NANO),
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


@pytest.fixture(scope="session")
def lora_reference(tmp_path_factory: pytest.TempPathFactory, prompts: list[list[int]], adapter: Path) -> list[Answer]:
    """vLLM called directly, with the adapter."""
    return _reference(tmp_path_factory.mktemp("lora-reference"), prompts, adapter)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Two vLLM workers with one core each."""
    state = tmp_path_factory.mktemp("two") / "state"
    with start_mesh(state, "--workers", "2", engine="vllm", timeout_s=UP_S_MAX) as mesh:
        yield mesh
