"""Chat templates: Hugging Face's Jinja dialect, in a sandbox, bounded."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from services.common.card import CardError
from services.common.errors import InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

RENDERED_CHARS_MAX = 16 * 1024 * 1024
_REPEAT_MAX = 1024 * 1024


class _Generation(jinja2.ext.Extension):
    """`{% generation %}`, which marks a template's answers for training, is its content."""

    tags = frozenset(["generation"])  # type: ignore[assignment]  # jinja2 annotates a set and reads it only

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Refuses what would eat memory in one expression; `range` is bounded by jinja2 itself (100,000)."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: jinja2.runtime.Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "**":
            raise jinja2.exceptions.SecurityError("the operator ** is not available")
        for sequence, times in ((left, right), (right, left)):
            if hasattr(sequence, "__len__") and isinstance(times, int) and len(sequence) * times > _REPEAT_MAX:
                raise jinja2.exceptions.SecurityError("a repetition is too long")
        return super().call_binop(context, operator, left, right)


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers does: no HTML escapes, unlike Jinja's own filter."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _utc_now() -> datetime:
    return datetime.now(UTC)


class ChatTemplate:
    """A compiled template; thread-safe.

    Args:
        source: the Jinja text.
        bos_token, eos_token: what the template sees under these names; None is the empty string.
        now: the clock behind `strftime_now`.

    Raises:
        CardError: the source is not a template.
    """

    def __init__(
        self,
        source: str,
        *,
        bos_token: str | None,
        eos_token: str | None,
        now: Callable[[], datetime] = _utc_now,
    ) -> None:
        environment = _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, jinja2.ext.loopcontrols])
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda fmt: now().strftime(fmt)
        environment.globals["bos_token"] = bos_token or ""
        environment.globals["eos_token"] = eos_token or ""
        try:
            self._template = environment.from_string(source)
        except jinja2.exceptions.TemplateSyntaxError as error:
            raise CardError(f"the chat template is broken at line {error.lineno}: {error.message}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt of a conversation.

        Raises:
            InvalidRequestError: the template refuses these messages, in its own words.
        """
        pieces = []
        size = 0
        try:
            for piece in self._template.generate(
                messages=messages, tools=tools or None, add_generation_prompt=add_generation_prompt, **kwargs
            ):
                size += len(piece)
                if size > RENDERED_CHARS_MAX:
                    raise jinja2.exceptions.SecurityError(f"the prompt is over {RENDERED_CHARS_MAX} characters")
                pieces.append(piece)
        except (jinja2.exceptions.TemplateError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise InvalidRequestError(
                f"The model's chat template refuses these messages: {error}.", param="messages"
            ) from error
        except (AttributeError, RecursionError) as error:
            raise InvalidRequestError(
                "The model's chat template can't render these messages.", param="messages"
            ) from error
        return "".join(pieces)


class NoTemplate:
    """Stands where a model's card has no chat template."""

    def __init__(self, model: str) -> None:
        self._model = model

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """Always refuses.

        Raises:
            UnsupportedError: says to use /v1/completions.
        """
        raise UnsupportedError(
            f"The model {self._model} has no chat template: send the whole prompt to /v1/completions instead.",
            param="messages",
        )
