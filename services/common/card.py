"""The model card: all that a gateway needs of a model, so that it has neither torch nor the weights.

A card is metadata plus small files (tokenizer.json, chat template, generation config). Its hash covers everything,
so two workers with the same hash are interchangeable for text, and a gateway fetches each card once.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

if TYPE_CHECKING:
    from collections.abc import Mapping

TOKENIZER = "tokenizer.json"
CHAT_TEMPLATE = "chat_template.jinja"
CARD = "card.json"
CARD_BYTES_MAX = 64 * 1024 * 1024

Capability = Literal["logprobs", "structured_output", "penalties", "logit_bias", "sampling", "lora"]


class CardError(ValueError):
    """A card that can't be read, or whose bytes don't match its hash."""


class CardMeta(BaseModel):
    """`card.json`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str
    """Served name of the base model."""
    lora: tuple[str, ...] = ()
    """Served names of the adapters."""
    version: str
    """Hash of what shapes the weights (config, weight index); part of cache keys."""
    engine: Literal["vllm", "sim"]
    context_length: int = Field(gt=0)
    """Tokens, prompt and answer together."""
    vocab_size: int = Field(gt=0)
    """Token ids are below it."""
    eos_token_ids: tuple[int, ...] = ()
    bos_token: str | None = None
    eos_token: str | None = None
    max_logprobs: int = 20
    capabilities: tuple[Capability, ...] = ()
    generation: dict[str, float] = {}
    """Sampling defaults of the model: temperature, top_p, top_k, min_p, repetition_penalty."""


class ModelCard:
    """Metadata and files; immutable."""

    def __init__(self, meta: CardMeta, files: Mapping[str, bytes]) -> None:
        self.meta = meta
        self.files = dict(files)
        digest = hashlib.blake2b(digest_size=16, person=b"penstock-card")
        for name, data in sorted(self._everything().items()):
            digest.update(json.dumps([name, hashlib.sha256(data).hexdigest()]).encode())
        self.hash = digest.hexdigest()

    def _everything(self) -> dict[str, bytes]:
        return {CARD: self.meta.model_dump_json().encode(), **self.files}

    def pieces(self, size: int = 1024 * 1024) -> list[tuple[str, bytes]]:
        """(file name or "" to go on, data) for the wire, each at most `size` bytes."""
        out: list[tuple[str, bytes]] = []
        for name, data in self._everything().items():
            out.append((name, data[:size]))
            out.extend(("", data[at : at + size]) for at in range(size, len(data), size))
        return out

    @classmethod
    def parse(cls, files: Mapping[str, bytes], expected_hash: str) -> ModelCard:
        """Rebuild a card from the files of the wire.

        Raises:
            CardError: no or bad card.json, or another hash than expected.
        """
        rest = dict(files)
        try:
            meta = CardMeta.model_validate_json(rest.pop(CARD))
        except KeyError as error:
            raise CardError("the card has no card.json") from error
        except ValidationError as error:
            raise CardError(f"card.json is not a card: {error}") from error
        card = cls(meta, rest)
        if card.hash != expected_hash:
            raise CardError(f"the card's hash is {card.hash}, not {expected_hash}")
        return card

    def json_file(self, name: str) -> dict[str, Any]:
        """A JSON file of the card, or {} when it has none.

        Raises:
            CardError: it is not a JSON object.
        """
        data = self.files.get(name)
        if data is None:
            return {}
        try:
            value = json.loads(data)
        except ValueError as error:
            raise CardError(f"{name} is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise CardError(f"{name} is not a JSON object")
        return value
