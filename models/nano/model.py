"""A Llama in plain PyTorch, and the Hugging Face folder that it is saved to.

Module names are those of Hugging Face's LlamaForCausalLM, so `state_dict()` is the checkpoint.
"""

# mypy: allow-subclassing-any, allow-untyped-decorators
# (torch is optional, so mypy skips it.)

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Shape:
    """The size of the model. Heads and KV heads are even, so that two tensor-parallel ranks can share them."""

    vocab_size: int = 2048
    hidden_size: int = 192
    layers: int = 4
    heads: int = 6
    kv_heads: int = 2
    head_dim: int = 32
    intermediate_size: int = 512
    max_positions: int = 8192
    rope_theta: float = 10_000.0
    norm_eps: float = 1e-5

    def config(self, bos: int, eos: int) -> dict[str, Any]:
        """The `config.json` of this shape."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab_size,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "hidden_act": "silu",
            "max_position_embeddings": self.max_positions,
            "rms_norm_eps": self.norm_eps,
            "rope_theta": self.rope_theta,
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "initializer_range": 0.02,
            "tie_word_embeddings": True,
            "use_cache": True,
            "bos_token_id": bos,
            "eos_token_id": eos,
            "pad_token_id": bos,
            "torch_dtype": "float32",
        }


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, self.weight.shape, self.weight, self.eps)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions in the half-rotation order that Hugging Face's Llama uses."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(shape.hidden_size, queries, bias=False)
        self.k_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(shape.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.hidden_size, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            project(x).view(batch, length, -1, self.shape.head_dim).transpose(1, 2)
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        share = self.shape.heads // self.shape.kv_heads
        q, k = _rotate(q, cos, sin), _rotate(k, cos, sin).repeat_interleave(share, dim=1)
        v = v.float().repeat_interleave(share, dim=1)
        with torch.autocast("cpu", enabled=False):  # on a CPU, the backward pass is far slower in bfloat16
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed: Tensor = self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))
        return mixed


class MLP(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.up_proj = nn.Linear(shape.hidden_size, shape.intermediate_size, bias=False)
        self.down_proj = nn.Linear(shape.intermediate_size, shape.hidden_size, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = MLP(shape)
        self.input_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)
        self.post_attention_layernorm = RMSNorm(shape.hidden_size, shape.norm_eps)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Trunk(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab_size, shape.hidden_size)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = RMSNorm(shape.hidden_size, shape.norm_eps)


class Llama(nn.Module):
    """The model. The output matrix is the embedding (tied)."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        self.apply(_init)
        for layer in self.model.layers:
            nn.init.zeros_(layer.self_attn.o_proj.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)

    def hidden(self, ids: Tensor) -> Tensor:
        """The last hidden state of every position of `ids` (batch, length)."""
        half = self.shape.head_dim // 2
        speed = self.shape.rope_theta ** (-torch.arange(half, dtype=torch.float32) / half)
        angle = torch.outer(torch.arange(ids.shape[1], dtype=torch.float32), speed)
        cos, sin = angle.cos(), angle.sin()
        x: Tensor = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, cos, sin)
        out: Tensor = self.model.norm(x)
        return out

    def logits(self, hidden: Tensor) -> Tensor:
        return functional.linear(hidden, self.model.embed_tokens.weight)

    @torch.inference_mode()
    def greedy(self, ids: Sequence[int], stop: frozenset[int], max_new: int = 256) -> list[int]:
        """The most likely answer, token by token, without a cache: fine for a sample, slow for more."""
        out: list[int] = []
        while len(out) < max_new:
            hidden = self.hidden(torch.tensor([[*ids, *out]]))
            token = int(self.logits(hidden[0, -1]).argmax())
            if token in stop:
                break
            out.append(token)
        return out


def _init(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
