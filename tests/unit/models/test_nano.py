"""The bundled model's folder is complete, small, and what vLLM and the gateway expect. No torch needed."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from models.nano.corpus import samples

if TYPE_CHECKING:
    from jinja2 import Template

NANO = Path(__file__).resolve().parents[3] / "models" / "nano"
SIZE_BYTES_MAX = 10_000_000

WEATHER_TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Le temps qu'il fait à Zürich & <ailleurs>",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TOOL_CALL: dict[str, Any] = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Málaga"}},
}


def read(name: str) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((NANO / name).read_text(encoding="utf-8"))
    return value


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return read("config.json")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(NANO / "tokenizer.json"))


@pytest.fixture(scope="module")
def template() -> Template:
    """The template as Hugging Face, and the gateway, compile it."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(read("tokenizer_config.json")["chat_template"])


def expected_shapes(config: dict[str, Any]) -> dict[str, list[int]]:
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    queries = config["num_attention_heads"] * config["head_dim"]
    keys = config["num_key_value_heads"] * config["head_dim"]
    shapes = {"model.embed_tokens.weight": [config["vocab_size"], hidden], "model.norm.weight": [hidden]}
    for layer in range(config["num_hidden_layers"]):
        for name, shape in (
            ("self_attn.q_proj", [queries, hidden]),
            ("self_attn.k_proj", [keys, hidden]),
            ("self_attn.v_proj", [keys, hidden]),
            ("self_attn.o_proj", [hidden, queries]),
            ("mlp.gate_proj", [inner, hidden]),
            ("mlp.up_proj", [inner, hidden]),
            ("mlp.down_proj", [hidden, inner]),
            ("input_layernorm", [hidden]),
            ("post_attention_layernorm", [hidden]),
        ):
            shapes[f"model.layers.{layer}.{name}.weight"] = shape
    return shapes


def test_folder_is_small() -> None:
    files = [path for path in NANO.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) <= SIZE_BYTES_MAX


def test_config_can_be_split_over_two_ranks(config: dict[str, Any]) -> None:
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert config["model_type"] == "llama"
    assert config["head_dim"] == 32
    assert config["num_attention_heads"] % 2 == 0
    assert config["num_key_value_heads"] % 2 == 0
    assert config["num_attention_heads"] % config["num_key_value_heads"] == 0
    assert config["intermediate_size"] % 2 == 0
    assert config["vocab_size"] % 64 == 0
    assert config["max_position_embeddings"] == 8192
    assert config["torch_dtype"] == "float32"


def test_tensors_are_those_of_the_config(config: dict[str, Any]) -> None:
    path = NANO / "model.safetensors"
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header: dict[str, Any] = json.loads(file.read(length))
    assert header.pop("__metadata__") == {"format": "pt"}
    assert config["tie_word_embeddings"]
    assert {name: tensor["shape"] for name, tensor in header.items()} == expected_shapes(config)
    assert {tensor["dtype"] for tensor in header.values()} == {"F32"}
    assert path.stat().st_size == 8 + length + max(tensor["data_offsets"][1] for tensor in header.values())


def test_special_tokens_agree(config: dict[str, Any], tokenizer: Tokenizer) -> None:
    end_of_text, end = tokenizer.token_to_id("<|endoftext|>"), tokenizer.token_to_id("<|im_end|>")
    assert (config["bos_token_id"], config["eos_token_id"]) == (end_of_text, end)
    assert read("generation_config.json")["eos_token_id"] == [end, end_of_text]
    added = read("tokenizer_config.json")["added_tokens_decoder"]
    assert {int(key): value["content"] for key, value in added.items()} == {
        0: "<|endoftext|>",
        1: "<|im_start|>",
        2: "<|im_end|>",
    }
    assert tokenizer.get_vocab_size() <= config["vocab_size"]
    assert read("special_tokens_map.json")["eos_token"] == "<|im_end|>"


@pytest.mark.parametrize(
    "text",
    [
        "Hello, world!",
        " two  spaces and\n\n\ttabs ",
        "Crème brûlée à Zürich: Straße, niño, 水, こんにちは, Привет",
        "👋🏽 family 👨‍👩‍👧‍👦 flag 🇫🇷 heart ❤️",
        "<tool_call>\n{\"a\": 12345, \"b\": -7.25}\n</tool_call>",
        "\x00\x7f\u200b\ufffd",
    ],
)  # fmt: skip
def test_tokenizer_round_trips(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids, skip_special_tokens=False) == text


def test_emoji_are_split_into_bytes(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("🚀").ids
    assert len(ids) == 4
    assert "\ufffd" in tokenizer.decode(ids[:2])


def test_special_tokens_are_one_token_each(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("<|im_start|><|im_end|><|endoftext|>").ids == [1, 2, 0]


def test_template_without_system(template: Template) -> None:
    rendered = template.render(messages=[{"role": "user", "content": "Hi 👋"}], add_generation_prompt=True)
    assert rendered == "<|im_start|>user\nHi 👋<|im_end|>\n<|im_start|>assistant\n"


def test_template_with_system_and_parts(template: Template) -> None:
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    ]
    assert template.render(messages=messages, tools=None, add_generation_prompt=False) == (
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nab<|im_end|>\n"
        "<|im_start|>assistant\nc<|im_end|>\n<|im_start|>user\nd<|im_end|>\n"
    )


def test_template_lists_tools_as_json_lines(template: Template) -> None:
    messages = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Weather?"}]
    rendered = template.render(messages=messages, tools=[WEATHER_TOOL, WEATHER_TOOL], add_generation_prompt=True)
    line = json.dumps(WEATHER_TOOL, ensure_ascii=False)
    assert rendered.startswith("<|im_start|>system\nBe kind.\n\n")
    assert f"<tools>\n{line}\n{line}\n</tools>\n" in rendered
    assert rendered.count("<|im_start|>system") == 1


@pytest.mark.parametrize("arguments", [{"city": "Málaga"}, '{"city": "Málaga"}'])
def test_template_renders_calls_and_results(template: Template, arguments: dict[str, str] | str) -> None:
    call = {**TOOL_CALL, "function": {"name": "get_weather", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "tool", "tool_call_id": "call_2", "content": "rainy"},
    ]
    rendered = template.render(messages=messages, tools=[WEATHER_TOOL], add_generation_prompt=True)
    called = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Málaga"}}\n</tool_call>'
    assert rendered.endswith(
        f"<|im_start|>assistant\n{called}\n{called}<|im_end|>\n"
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nrainy\n</tool_response><|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_template_file_is_the_one_in_the_tokenizer_config() -> None:
    text = (NANO / "chat_template.jinja").read_text(encoding="utf-8")
    assert read("tokenizer_config.json")["chat_template"] == text


def test_corpus_is_the_same_for_a_seed() -> None:
    assert samples(7, 200) == samples(7, 200)
    assert samples(7, 200) != samples(8, 200)


def test_corpus_renders_and_ends_with_the_assistant(template: Template) -> None:
    for sample in samples(3, 300):
        if sample.text:
            continue
        assert sample.messages[-1]["role"] == "assistant"
        rendered = template.render(messages=sample.messages, tools=sample.tools)
        assert rendered.count("<|im_start|>") == rendered.count("<|im_end|>")
        assert rendered.endswith("<|im_end|>\n")


def test_corpus_covers_tools_systems_and_plain_text() -> None:
    made = samples(5, 500)
    assert any(sample.tools for sample in made)
    assert any(sample.text for sample in made)
    with_system = sum(bool(s.messages) and s.messages[0]["role"] == "system" for s in made)
    assert 150 < with_system < 300
