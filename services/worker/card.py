"""Builds the model card from a Hugging Face folder or hub id. Needs no weights, torch or tokenizer library."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, LocalEntryNotFoundError

from services.common.card import CHAT_TEMPLATE, TOKENIZER, CardError, CardMeta, ModelCard

if TYPE_CHECKING:
    import numpy.typing as npt

    from services.worker.engine.base import EngineInfo

_GENERATION_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_CONTEXT_FIELDS = ("max_position_embeddings", "n_positions", "max_sequence_length", "max_seq_len", "seq_length")
_WEIGHT_FILES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_FILE_BYTES_MAX = 48 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ModelSource:
    """Where a model's small files are: a folder, or a hub id (the local cache first, then the hub)."""

    model: str
    revision: str = ""

    def read(self, name: str) -> bytes | None:
        """The file, or None when the model has none of that name.

        Raises:
            CardError: the model can't be reached, or the file is too large for a card.
        """
        path = self._path(name)
        if path is None:
            return None
        if path.stat().st_size > _FILE_BYTES_MAX:
            raise CardError(f"{path} has more than {_FILE_BYTES_MAX} bytes")
        return path.read_bytes()

    def read_json(self, name: str) -> dict[str, Any]:
        """The JSON object, or {} when there is no such file.

        Raises:
            CardError: it is not a JSON object.
        """
        data = self.read(name)
        if data is None:
            return {}
        try:
            value = json.loads(data)
        except ValueError as error:
            raise CardError(f"{name} of {self.model} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise CardError(f"{name} of {self.model} is not a JSON object")
        return value

    def weights_mark(self) -> bytes:
        """Bytes that change when the weights do: the hub's commit, the index of the shards, or size and ends of a
        single file."""  # fmt: skip
        if not Path(self.model).is_dir():
            path = self._path("config.json")
            return b"" if path is None else path.parent.name.encode()
        for name in _WEIGHT_FILES:
            data = self.read(name)
            if data is not None:
                return data
        path = self._folder_file("model.safetensors")
        if path is None:
            return b""
        with path.open("rb") as file:
            head = file.read(1024 * 1024)
            file.seek(max(0, path.stat().st_size - 1024 * 1024))
            return f"{path.stat().st_size}".encode() + head + file.read()

    def _folder_file(self, name: str) -> Path | None:
        path = Path(self.model) / name
        return path if path.is_file() else None

    def _path(self, name: str) -> Path | None:
        if Path(self.model).is_dir():
            return self._folder_file(name)
        if self.model.startswith((".", "/", "~")) or self.model.count("/") > 1:
            raise CardError(f"there is no folder {self.model}")
        revision = self.revision or None
        try:
            return Path(hf_hub_download(self.model, name, revision=revision, local_files_only=True))
        except (LocalEntryNotFoundError, EntryNotFoundError):
            pass  # not in the local cache: ask the hub
        except (OSError, ValueError) as error:
            raise CardError(f"{self.model} is neither a folder nor a hub id: {error}") from error
        try:
            return Path(hf_hub_download(self.model, name, revision=revision))
        except LocalEntryNotFoundError as error:
            raise CardError(f"{self.model} is not in the local cache and the hub can't be reached: {error}") from error
        except EntryNotFoundError:
            return None
        except (HfHubHTTPError, OSError, ValueError) as error:
            raise CardError(f"cannot read {name} of {self.model} from the hub: {error}") from error


def ordinary_tokens(tokenizer: bytes, vocab_size: int) -> npt.NDArray[np.uint32]:
    """Ids of the tokenizer's vocabulary that are not special and are below `vocab_size`, rising; shape (n,).

    Raises:
        CardError: not a tokenizer.json, or nothing ordinary in it.
    """
    try:
        root = json.loads(tokenizer)
        vocabulary = root["model"]["vocab"]
        ids = vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
        special = {int(entry["id"]) for entry in root.get("added_tokens", ()) if entry.get("special")}
        found = sorted({int(i) for i in ids if 0 <= int(i) < vocab_size} - special)
    except (ValueError, KeyError, TypeError) as error:
        raise CardError(f"tokenizer.json is not a tokenizer: {error!r}") from error
    if not found:
        raise CardError("tokenizer.json has no ordinary token")
    return np.array(found, dtype=np.uint32)


def vocabulary_size(source: ModelSource) -> int:
    """Number of token ids: the config's, or the tokenizer's where there is no config.

    Raises:
        CardError: neither says.
    """
    config = source.read_json("config.json")
    text = config.get("text_config")
    size = config.get("vocab_size") or (text.get("vocab_size") if isinstance(text, dict) else None)
    if size is None:
        root = json.loads(tokenizer_bytes(source))
        ids = [int(entry["id"]) for entry in root.get("added_tokens", ())]
        size = max(len(root["model"]["vocab"]), max(ids, default=-1) + 1)
    if not isinstance(size, int) or size <= 0:
        raise CardError(f"config.json of {source.model}: vocab_size is {size!r}")
    return size


def tokenizer_bytes(source: ModelSource) -> bytes:
    """tokenizer.json.

    Raises:
        CardError: the model has none.
    """
    data = source.read(TOKENIZER)
    if data is None:
        raise CardError(
            f"{source.model} has no {TOKENIZER}: gateways need a fast tokenizer. Load it once with transformers' "
            "AutoTokenizer(use_fast=True), save_pretrained() it, and serve that folder"
        )
    return data


def context_length(source: ModelSource) -> int | None:
    """Tokens, prompt and answer together, that the model's config allows; None when it doesn't say."""
    config = source.read_json("config.json")
    text = config.get("text_config")
    for place in (config, text if isinstance(text, dict) else {}):
        for name in _CONTEXT_FIELDS:
            value = place.get(name)
            if isinstance(value, int) and value > 0:
                return value
    return None


def model_version(source: ModelSource, engine: str) -> str:
    """Hash of what shapes the weights, and of the engine that computes with them; names the model in block hashes.

    Raises:
        CardError: config.json is not what it should be.
    """
    version = hashlib.blake2b(digest_size=16, person=b"penstock-model")
    config = json.dumps(source.read_json("config.json"), sort_keys=True).encode()
    for part in (config, source.weights_mark(), engine.encode()):
        version.update(hashlib.sha256(part).digest())
    return version.hexdigest()


def build(source: ModelSource, served_name: str, info: EngineInfo) -> ModelCard:
    """The card of what `info` describes under `served_name`.

    Raises:
        CardError: no tokenizer.json, or a file that isn't what it should be.
    """
    config = source.read_json("config.json")
    generation = source.read_json("generation_config.json")
    tokenizer_config = source.read_json("tokenizer_config.json")
    files = {TOKENIZER: tokenizer_bytes(source)}
    template = _chat_template(source, tokenizer_config)
    if template is not None:
        files[CHAT_TEMPLATE] = template
    meta = CardMeta(
        model=served_name,
        lora=info.loras,
        version=model_version(source, info.kind),
        engine="sim" if info.kind == "sim" else "vllm",
        context_length=info.context_length,
        vocab_size=vocabulary_size(source),
        eos_token_ids=_eos_ids(config, generation),
        bos_token=_token_text(tokenizer_config.get("bos_token")),
        eos_token=_token_text(tokenizer_config.get("eos_token")),
        capabilities=info.capabilities,
        generation={
            name: float(generation[name])
            for name in _GENERATION_DEFAULTS
            if isinstance(generation.get(name), int | float)
        },
    )
    return ModelCard(meta, files)


def _chat_template(source: ModelSource, tokenizer_config: dict[str, Any]) -> bytes | None:
    """The template: a file of its own, a string, or the one named `default` of a list."""
    data = source.read(CHAT_TEMPLATE)
    if data is not None:
        return data
    value = tokenizer_config.get("chat_template")
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    return value.encode() if isinstance(value, str) else None


def _eos_ids(config: dict[str, Any], generation: dict[str, Any]) -> tuple[int, ...]:
    """End-of-sequence ids; the generation config wins, as it does in vLLM."""
    value = generation.get("eos_token_id", config.get("eos_token_id"))
    ids = value if isinstance(value, list) else [value]
    return tuple(i for i in ids if isinstance(i, int))


def _token_text(value: object) -> str | None:
    """A special token as text; older configs hold it as an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
