"""Messages and tools of a chat request."""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Literal

import jsonschema
import orjson
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator, model_validator

from services.gateway.openai import known
from services.gateway.openai.problems import problem
from services.gateway.text.tools import calls_in_message

SCHEMA_BYTES_MAX = 64 * 1024
TOOLS_BYTES_MAX = 128 * 1024
_CHECKED_MAX = 128
"""Schemas known to be good: agents send the same tools with every request, and a check takes up to 25 ms."""
FunctionName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]


class Strict(BaseModel):
    """No conversions; unknown fields are dealt with by `known.strip`, never here."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", allow_inf_nan=False)


def stripped(fields: tuple[str, ...], defaults: known.Defaults = known.NONE) -> BeforeValidator:
    """Drops nulls and harmless fields of an object before it is validated."""

    def strip(raw: Any) -> Any:
        if not isinstance(raw, dict):
            return raw
        unserved = known.first_unserved(raw, fields, defaults)
        if unserved is not None and unserved in defaults:
            raise problem("is not supported here; leave it out", at=(unserved,), kind="unsupported")
        if unserved is not None:
            raise problem("is an unknown field; leave it out", at=(unserved,))
        return {name: value for name, value in raw.items() if name in fields and value is not None}

    return BeforeValidator(strip)


def _schema(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise problem("must be a JSON schema, an object")
    written = orjson.dumps(value)
    if len(written) > SCHEMA_BYTES_MAX:
        raise problem(f"must have at most {SCHEMA_BYTES_MAX} bytes")
    _check_schema(written)
    return value


@lru_cache(_CHECKED_MAX)
def _check_schema(written: bytes) -> None:
    """Against draft 7, which is six times faster to check than 2020-12 and knows the same words but `$defs`."""
    schema = orjson.loads(written)
    definitions = schema.get("$defs", {})
    if not isinstance(definitions, dict):
        raise problem("must be an object of schemas", at=("$defs",))
    _check_draft7(schema, ())
    for name, definition in definitions.items():
        _check_draft7(definition, ("$defs", name))


def _check_draft7(schema: Any, at: tuple[str, ...]) -> None:
    try:
        jsonschema.Draft7Validator.check_schema(schema)
    except jsonschema.SchemaError as error:
        raise problem(f"is not a JSON schema: {error.message[:200]}", at=(*at, *error.absolute_path)) from error


def tools_bounded(value: Any) -> Any:
    """Before the tools are looked at one by one."""
    if isinstance(value, list) and len(orjson.dumps(value)) > TOOLS_BYTES_MAX:
        raise problem(f"must have at most {TOOLS_BYTES_MAX} bytes in all")
    return value


JsonSchemaObject = Annotated[dict[str, Any], PlainValidator(_schema)]


def _content(value: Any) -> str:
    """A string, or the text parts of a list, one to a line."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list):
        raise problem("must be a string or a list of text parts")
    return "\n".join(_part(part, index) for index, part in enumerate(value))


def _part(part: Any, index: int) -> str:
    if not isinstance(part, dict):
        raise problem("must be an object with type and text", at=(index,))
    kind = part.get("type")
    if not isinstance(kind, str):
        raise problem('is required and must be "text"', at=(index, "type"))
    if kind != "text":
        raise problem(
            f'"{kind[:40]}" is not supported: images, audio and files are out for now, only "text" parts are taken',
            at=(index, "type"),
            kind="unsupported",
        )
    text = part.get("text")
    if not isinstance(text, str):
        raise problem("must be a string", at=(index, "text"))
    return text


class FunctionCall(Strict):
    """What an assistant called."""

    name: FunctionName
    arguments: str


class ToolCall(Strict):
    """One call in an assistant message."""

    id: str = Field(max_length=256)
    type: Literal["function"] = "function"
    function: Annotated[FunctionCall, stripped(("name", "arguments"))]


class Message(Strict):
    """One message; `content` is flattened to a string."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str, PlainValidator(_content)] | None = None
    name: str | None = Field(default=None, max_length=256)
    tool_calls: list[Annotated[ToolCall, stripped(("id", "type", "function"))]] | None = Field(
        default=None, max_length=128
    )
    tool_call_id: str | None = Field(default=None, max_length=256)

    @model_validator(mode="after")
    def _fits_role(self) -> Message:
        if self.tool_calls and self.role != "assistant":
            raise problem('is only for role "assistant"', at=("tool_calls",))
        if self.role == "tool" and self.tool_call_id is None:
            raise problem('is required for role "tool"', at=("tool_call_id",))
        if self.role != "tool" and self.tool_call_id is not None:
            raise problem('is only for role "tool"', at=("tool_call_id",))
        if self.content is None and not self.tool_calls:
            raise problem("is required", at=("content",))
        return self

    def for_template(self) -> dict[str, Any]:
        """As chat templates expect it."""
        return calls_in_message({"content": "", **self.model_dump(exclude_none=True)})


ChatMessage = Annotated[Message, stripped(("role", "content", "name", "tool_calls", "tool_call_id"), known.MESSAGE)]


class Function(Strict):
    """A function that the model may call."""

    name: FunctionName
    description: str | None = None
    parameters: JsonSchemaObject | None = None
    strict: bool = False


class Tool(Strict):
    """One entry of `tools`."""

    type: Literal["function"]
    function: Annotated[Function, stripped(("name", "description", "parameters", "strict"))]


Tools = Annotated[
    list[Annotated[Tool, stripped(("type", "function"))]], BeforeValidator(tools_bounded), Field(max_length=128)
]


def _tool_choice(value: Any) -> Any:
    if value in ("none", "auto", "required"):
        return value
    if isinstance(value, str) or not isinstance(value, dict):
        raise problem('must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}')
    if value.get("type") != "function":
        raise problem('must be "function"', at=("type",), kind="unsupported")
    function = value.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if not isinstance(name, str) or not name:
        raise problem("is required and must be a string", at=("function", "name"))
    return {"type": "function", "function": {"name": name}}


ToolChoice = Annotated[str | dict[str, Any], PlainValidator(_tool_choice)]


class JsonSchemaFormat(Strict):
    """`response_format.json_schema`."""

    name: FunctionName
    description: str | None = None
    schema_: JsonSchemaObject = Field(alias="schema")
    strict: bool = False


class ResponseFormat(Strict):
    """`response_format`; a schema is enforced whatever `strict` says."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: Annotated[JsonSchemaFormat, stripped(("name", "description", "schema", "strict"))] | None = None

    @model_validator(mode="after")
    def _has_schema(self) -> ResponseFormat:
        if self.type == "json_schema" and self.json_schema is None:
            raise problem('is required with type "json_schema"', at=("json_schema",))
        if self.type != "json_schema" and self.json_schema is not None:
            raise problem('is only for type "json_schema"', at=("json_schema",))
        return self
