"""`tool_choice` that forces a call, as a JSON schema for structured output."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from services.common.errors import InvalidRequestError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DEFINITIONS = ("$defs", "definitions")


def forced_schema(tools: Sequence[Mapping[str, Any]], tool_choice: str | Mapping[str, Any]) -> str:
    """The schema of what the model must write, as JSON text.

    A named function: its arguments alone. `required`: {"name": ..., "arguments": {...}} of any of the tools.

    Args:
        tools: OpenAI's `tools`.
        tool_choice: "required", or {"type": "function", "function": {"name": ...}}.

    Raises:
        InvalidRequestError: no tool has that name.
        UnsupportedError: a tool's schema refers to itself in a way that can't be moved into another schema.
    """
    if tool_choice == "required":
        return json.dumps(_any_of(tools), ensure_ascii=False)
    name = tool_choice["function"]["name"] if not isinstance(tool_choice, str) else tool_choice
    for tool in tools:
        if tool["function"]["name"] == name:
            return json.dumps(_parameters(tool), ensure_ascii=False)
    raise InvalidRequestError(f"tool_choice names the function {name}, which is not in tools.", param="tool_choice")


def _parameters(tool: Mapping[str, Any]) -> dict[str, Any]:
    return tool["function"].get("parameters") or {"type": "object", "properties": {}}


def _any_of(tools: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    definitions: dict[str, Any] = {}
    options = []
    for number, tool in enumerate(tools):
        parameters = dict(_parameters(tool))
        for keyword in _DEFINITIONS:
            for name, schema in parameters.pop(keyword, {}).items():
                definitions[f"{number}.{name}"] = _moved(schema, number)
        options.append(
            {
                "type": "object",
                "properties": {
                    "name": {"enum": [tool["function"]["name"]]},
                    "arguments": _moved(parameters, number),
                },
                "required": ["name", "arguments"],
                "additionalProperties": False,
            }
        )
    schema = options[0] if len(options) == 1 else {"anyOf": options}
    return {"$defs": definitions, **schema} if definitions else schema


def _moved(schema: Any, number: int) -> Any:
    """`schema` with its references pointing to the common definitions, under this tool's number."""
    if isinstance(schema, list):
        return [_moved(item, number) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _moved_reference(value, number) if key == "$ref" and isinstance(value, str) else _moved(value, number)
        for key, value in schema.items()
    }


def _moved_reference(reference: str, number: int) -> str:
    for keyword in _DEFINITIONS:
        if reference.startswith(f"#/{keyword}/"):
            return f"#/$defs/{number}.{reference.removeprefix(f'#/{keyword}/')}"
    raise UnsupportedError(
        f'The reference "{reference}" can\'t be used with tool_choice "required"; move its target to $defs.',
        param=f"tools[{number}].function.parameters",
    )
