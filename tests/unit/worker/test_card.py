"""The card of a Hugging Face folder, and what is said when something is missing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from services.common.card import CHAT_TEMPLATE, TOKENIZER, CardError, ModelCard
from services.worker.card import ModelSource, build, context_length, ordinary_tokens, tokenizer_bytes, vocabulary_size
from services.worker.engine.base import EngineInfo

if TYPE_CHECKING:
    from pathlib import Path

INFO = EngineInfo("sim", 512, 10, 16, ("logprobs",), ("poet",))
TOKENIZER_JSON = {
    "model": {"type": "BPE", "vocab": {"<eos>": 0, "a": 1, "b": 2, "<bos>": 3}},
    "added_tokens": [{"id": 0, "content": "<eos>", "special": True}, {"id": 3, "content": "<bos>", "special": True}],
}


def folder(path: Path, **files: Any) -> ModelSource:
    """A model folder; `files` maps names (with _ for .) to JSON, or to text."""
    names = {"tokenizer": "tokenizer.json", "config": "config.json", "generation": "generation_config.json",
             "tokenizer_config": "tokenizer_config.json", "template": CHAT_TEMPLATE}  # fmt: skip
    for key, value in {"tokenizer": TOKENIZER_JSON, "config": {"vocab_size": 4}, **files}.items():
        if value is not None:
            (path / names[key]).write_text(value if isinstance(value, str) else json.dumps(value))
    return ModelSource(str(path))


def test_a_whole_card(tmp_path: Path) -> None:
    source = folder(
        tmp_path,
        config={"vocab_size": 4, "eos_token_id": 9, "max_position_embeddings": 77},
        generation={"eos_token_id": [0, 2], "temperature": 0.5, "top_k": 7, "do_sample": True, "top_p": None},
        tokenizer_config={"bos_token": {"content": "<bos>"}, "eos_token": "<eos>", "chat_template": "TEMPLATE"},
    )
    card = build(source, "served", INFO)
    meta = card.meta
    assert (meta.model, meta.lora, meta.engine, meta.context_length, meta.vocab_size) == (
        "served",
        ("poet",),
        "sim",
        512,
        4,
    )
    assert (meta.eos_token_ids, meta.bos_token, meta.eos_token) == ((0, 2), "<bos>", "<eos>")
    assert meta.generation == {"temperature": 0.5, "top_k": 7.0}
    assert card.files[CHAT_TEMPLATE] == b"TEMPLATE"
    assert json.loads(card.files[TOKENIZER]) == TOKENIZER_JSON
    assert context_length(source) == 77
    assert build(source, "served", INFO).hash == card.hash
    wire: dict[str, bytes] = {}
    last = ""
    for name, data in card.pieces(size=10):
        last = name or last
        wire[last] = wire.get(last, b"") + data
    assert ModelCard.parse(wire, card.hash).meta == meta


def test_a_template_file_wins_and_a_list_has_a_default(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    source = folder(tmp_path, tokenizer_config={"chat_template": named})
    assert build(source, "m", INFO).files[CHAT_TEMPLATE] == b"D"
    source = folder(tmp_path, tokenizer_config={"chat_template": named}, template="FILE")
    assert build(source, "m", INFO).files[CHAT_TEMPLATE] == b"FILE"


def test_the_version_changes_with_the_weights_only(tmp_path: Path) -> None:
    source = folder(tmp_path)
    first = build(source, "m", INFO)
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    second = build(source, "m", INFO)
    (tmp_path / "model.safetensors").write_bytes(b"Weights")
    third = build(source, "m", INFO)
    renamed = build(source, "another name", INFO)
    assert len({first.meta.version, second.meta.version, third.meta.version}) == 3
    assert renamed.meta.version == third.meta.version


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ({"tokenizer": None}, "fast tokenizer"),
        ({"config": "not json"}, "config.json"),
        ({"config": "[]"}, "config.json"),
        ({"config": {"vocab_size": "many"}}, "vocab_size"),
    ],
)
def test_a_bad_folder_is_refused_by_name(tmp_path: Path, files: dict[str, Any], said: str) -> None:
    with pytest.raises(CardError, match=said):
        build(folder(tmp_path, **files), "m", INFO)


def test_a_missing_folder_and_a_bad_id_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    for model in (str(tmp_path / "nowhere"), "./nowhere", "a/b/c", "bad id"):
        with pytest.raises(CardError):
            tokenizer_bytes(ModelSource(model))


def test_ordinary_tokens_are_not_special_and_below_the_vocabulary() -> None:
    assert ordinary_tokens(json.dumps(TOKENIZER_JSON).encode(), 4).tolist() == [1, 2]
    assert ordinary_tokens(json.dumps(TOKENIZER_JSON).encode(), 2).tolist() == [1]
    unigram = {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["x", -1.0]]}}
    assert ordinary_tokens(json.dumps(unigram).encode(), 9).tolist() == [0, 1]
    for bad in (b"{}", b"[]", b"nonsense", json.dumps({"model": {"vocab": {}}}).encode()):
        with pytest.raises(CardError):
            ordinary_tokens(bad, 4)


def test_the_vocabulary_size_comes_from_the_tokenizer_where_the_config_is_silent(tmp_path: Path) -> None:
    assert vocabulary_size(folder(tmp_path, config=None)) == 4
    assert vocabulary_size(folder(tmp_path, config={"text_config": {"vocab_size": 6}})) == 6
