"""A listener and an owner that remember, and text models to make choices of."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from services.common.card import CardMeta, ModelCard
from services.common.errors import EngineError
from services.gateway.generation.choice import Choice
from services.gateway.text.models import TextModel
from tests.unit.gateway.text import tokenizers_made as made

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.common.errors import PenstockError
    from services.common.frames import FinishReason
    from services.gateway.generation.choice import Extra, ToolParser


@cache
def text_model() -> TextModel:
    """Byte level: a token is a byte or a little more, so characters are split over tokens."""
    tokenizer = made.byte_level()
    meta = CardMeta(
        model="m", version="v", engine="sim", context_length=4096,
        vocab_size=tokenizer.get_vocab_size(with_added_tokens=True),
    )  # fmt: skip
    return TextModel.from_card(ModelCard(meta, {"tokenizer.json": tokenizer.to_str().encode()}))


def ids(text: str) -> list[int]:
    """Token ids of `text`."""
    return text_model().tokenization.encode(text, add_special_tokens=False)


class Recorder:
    """Listener and owner in one."""

    def __init__(self) -> None:
        self.deltas: list[tuple[int, str, int, Extra | None]] = []
        self.ends: list[tuple[int, str, int]] = []
        self.ended_early: list[bool] = []
        self.errors: list[PenstockError] = []
        self.refused = 0
        self.lost: list[str] = []

    @property
    def text(self) -> str:
        """All text."""
        return "".join(text for _, text, _, _ in self.deltas)

    def on_delta(self, choice: int, text: str, last_index: int, extra: Extra | None) -> None:
        self.deltas.append((choice, text, last_index, extra))

    def on_end(self, choice: int, reason: str, tokens: int) -> None:
        self.ends.append((choice, reason, tokens))

    def choice_ended(self, choice: Choice, *, early: bool) -> None:
        self.ended_early.append(early)

    def choice_failed(self, choice: Choice, error: PenstockError) -> None:
        self.errors.append(error)

    def choice_refused(self, choice: Choice) -> None:
        self.refused += 1

    def choice_lost(self, choice: Choice, why: str) -> None:
        self.lost.append(why)

    def finish_error(self, reason: FinishReason, detail: str) -> PenstockError:
        return EngineError(f"{reason.name} {detail}")


def choice_of(
    recorder: Recorder,
    *,
    stops: Sequence[str] = (),
    tools: Callable[[int], ToolParser] | None = None,
    hidden: frozenset[int] = frozenset(),
) -> Choice:
    """Choice 0, heard by `recorder`."""
    return Choice(0, recorder, recorder, text_model(), stops=stops, tools=tools, hidden=hidden)
