"""What is wrong with a request, in words for its author: the field as they wrote it, and what was expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import orjson
from pydantic_core import PydanticCustomError

from services.common.errors import InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pydantic import ValidationError
    from pydantic_core import ErrorDetails

_TYPE = "penstock"
_SHOWN_CHARS = 40

_EXPECTED = {
    "missing": "is required",
    "string_type": "must be a string",
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "list_type": "must be a list",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "model_attributes_type": "must be an object",
    "literal_error": "must be {expected}",
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "string_too_short": "must not be empty",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match {pattern}",
    "too_short": "must have at least {min_length} item(s)",
    "too_long": "must have at most {max_length} items, not {actual_length}",
}
_SILENT = frozenset({"missing", "string_too_short", "string_too_long", "too_short", "too_long"})
"""Problems that say enough without the value that was found."""


def problem(
    message: str, *, at: Iterable[str | int] = (), kind: Literal["invalid", "unsupported"] = "invalid"
) -> PydanticCustomError:
    """To be raised in a validator.

    Args:
        message: goes on after the field's name, e.g. "must be a string or a list of strings".
        at: path below the field being validated.
        kind: `unsupported` = a valid value that isn't served.
    """
    return PydanticCustomError(_TYPE, "{message}", {"message": message, "at": tuple(at), "kind": kind})


def path_of(parts: Iterable[str | int]) -> str:
    """`messages[0].role` for ("messages", 0, "role")."""
    path = ""
    for part in parts:
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path


def to_error(error: ValidationError) -> InvalidRequestError:
    """The first problem of a failed validation."""
    details = error.errors(include_url=False)[0]
    if details["type"] == _TYPE:
        context = details["ctx"]
        path = path_of((*details["loc"], *context["at"]))
        cls = UnsupportedError if context["kind"] == "unsupported" else InvalidRequestError
        return cls(f"{path} {context['message']}.".lstrip(), param=path or None)
    path = path_of(details["loc"])
    return InvalidRequestError(f"{path} {_words(details)}.", param=path)


def _words(details: ErrorDetails) -> str:
    expected = _EXPECTED.get(details["type"], "is not valid").format(**_plain(details.get("ctx", {})))
    return expected if details["type"] in _SILENT else expected + _found(details["input"])


def _plain(context: dict[str, Any]) -> dict[str, Any]:
    """Bounds as their author wrote them: 2, not 2.0."""
    return {
        key: int(value) if isinstance(value, float) and value.is_integer() else value for key, value in context.items()
    }


def _found(value: Any) -> str:
    """ ", not 3.5" where the value can be shown shortly."""
    if isinstance(value, dict | list):
        return f", not {'an object' if isinstance(value, dict) else 'a list'}"
    try:
        shown = orjson.dumps(value).decode()
    except TypeError:
        return ""
    return f", not {shown if len(shown) <= _SHOWN_CHARS else shown[:_SHOWN_CHARS] + '…'}"
