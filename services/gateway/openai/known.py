"""Fields that OpenAI's API has and Penstock does not serve, and the values of them that change nothing.

Such a field is accepted with one of these values, with null, or empty; with anything else it is refused by name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from services.common.errors import InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    Defaults = Mapping[str, tuple[Any, ...]]

COMMON: Defaults = {
    "prompt_cache_key": (),
    "prompt_cache_retention": (),
    "prompt_cache_options": (),
    "safety_identifier": (),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
}
CHAT: Defaults = {
    **COMMON,
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "functions": (),
    "function_call": ("none", "auto"),
    "reasoning_effort": (),
    "verbosity": ("medium",),
    "web_search_options": (),
    "moderation": (),
    "echo": (False,),
    "add_generation_prompt": (True,),
}
COMPLETION: Defaults = {**COMMON, "echo": (False,), "suffix": (), "best_of": (1,)}
MESSAGE: Defaults = {"refusal": (), "audio": (), "function_call": (), "annotations": (), "reasoning_content": ()}
STREAM_OPTIONS: Defaults = {"include_obfuscation": (False,)}
NONE: Defaults = {}

_HINTS = {
    "functions": "use tools",
    "function_call": "use tool_choice",
    "web_search_options": "the mesh has no web access",
    "suffix": "write the whole prompt into prompt",
    "best_of": "use n",
}


def strip(raw: Mapping[str, Any], fields: Collection[str], defaults: Defaults) -> dict[str, Any]:
    """A request with only our `fields`, and without nulls.

    Raises:
        UnsupportedError: a field of `defaults` has another value.
        InvalidRequestError: nobody knows a field.
    """
    unserved = first_unserved(raw, fields, defaults)
    if unserved in defaults:
        hint = f"; {_HINTS[unserved]}" if unserved in _HINTS else ""
        raise UnsupportedError(f"{unserved} is not supported here{hint}. Leave it out.", param=unserved)
    if unserved is not None:
        raise InvalidRequestError(f"Unknown field {unserved}. Leave it out.", param=unserved, code="unknown_field")
    return {name: value for name, value in raw.items() if name in fields and value is not None}


def first_unserved(raw: Mapping[str, Any], fields: Collection[str], defaults: Defaults) -> str | None:
    """The first field that is none of ours and holds more than nothing or its default."""
    for name, value in raw.items():
        if name in fields or _is_empty(value) or any(_same(value, default) for default in defaults.get(name, ())):
            continue
        return name
    return None


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)


def _same(value: Any, default: Any) -> bool:
    """Equal, and not 1 for true."""
    return type(value) is type(default) and value == default
