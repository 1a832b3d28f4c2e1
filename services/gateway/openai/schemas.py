"""Requests of the OpenAI HTTP API, validated.

A field that isn't served is refused by name (`known.py`); its null, empty or default value is accepted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, overload

import orjson
from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationError, model_validator

from services.common.errors import InvalidRequestError
from services.gateway.openai import fields, known
from services.gateway.openai.messages import (
    ChatMessage,
    ResponseFormat,
    Strict,
    ToolChoice,
    Tools,
    stripped,
)
from services.gateway.openai.problems import problem, to_error

if TYPE_CHECKING:
    from services.common.tenants import PriorityClassName

Kind = Literal["chat", "completion", "tokenize", "detokenize"]

DEPTH_MAX = 64
CHOICES_MAX = 16
STOPS_MAX = 16
STOP_CHARS_MAX = 256
LOGPROBS_MAX = 20
_TOKENS_MAX = 2**31 - 1

_CLASS_OF_TIER: dict[str, PriorityClassName] = {
    "priority": "interactive",
    "flex": "batch",
    "interactive": "interactive",
    "standard": "standard",
    "batch": "batch",
}


class StreamOptions(Strict):
    """`stream_options`."""

    include_usage: bool = False


class GenerationRequest(Strict):
    """What chat and text completions share. Unset sampling fields are None: the model's own defaults apply."""

    model: str = Field(min_length=1, max_length=256)
    stream: bool = False
    stream_options: Annotated[StreamOptions, stripped(("include_usage",), known.STREAM_OPTIONS)] | None = None
    n: int = Field(default=1, ge=1, le=CHOICES_MAX)
    stop: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=STOP_CHARS_MAX)]],
        BeforeValidator(fields.stop_list),
        Field(max_length=STOPS_MAX),
    ] = Field(default_factory=list)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    temperature: float | None = Field(default=None, ge=0, le=2)
    top_p: float | None = Field(default=None, gt=0, le=1)
    top_k: Annotated[int, Field(le=_TOKENS_MAX), AfterValidator(fields.top_k)] | None = None
    min_p: float | None = Field(default=None, ge=0, le=1)
    presence_penalty: float | None = Field(default=None, ge=-2, le=2)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10)
    logit_bias: Annotated[dict[int, float], PlainValidator(fields.logit_bias)] = Field(default_factory=dict)
    max_tokens: int | None = Field(default=None, ge=1, le=_TOKENS_MAX)
    min_tokens: int = Field(default=0, ge=0, le=_TOKENS_MAX)
    ignore_eos: bool = False
    user: str | None = Field(default=None, max_length=512)
    metadata: Annotated[dict[str, str], PlainValidator(fields.metadata)] = Field(default_factory=dict)
    store: Annotated[bool, AfterValidator(fields.store)] = False
    service_tier: Literal["auto", "default", "flex", "priority", "interactive", "standard", "batch"] | None = None
    response_format: Annotated[ResponseFormat, stripped(("type", "json_schema"))] | None = None
    cache: bool | None = None
    """Penstock's own: the response cache, on or off for this request."""

    @model_validator(mode="after")
    def _agrees(self) -> GenerationRequest:
        if self.stream_options is not None and not self.stream:
            raise problem("is only for stream: true", at=("stream_options",))
        limit = self.token_limit
        if limit is not None and self.min_tokens > limit:
            raise problem(f"must be at most max_tokens ({limit}), not {self.min_tokens}", at=("min_tokens",))
        return self

    @property
    def token_limit(self) -> int | None:
        """Tokens per choice that the client allows; None when it didn't say."""
        return self.max_tokens

    @property
    def include_usage(self) -> bool:
        """A usage chunk is wanted at the end of the stream."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def priority_class(self) -> PriorityClassName | None:
        """The class that `service_tier` asks for; None = no wish."""
        return _CLASS_OF_TIER.get(self.service_tier or "")

    @property
    def alternatives(self) -> int | None:
        """Log probabilities: alternatives per token, 0 = of the token alone, None = none at all."""
        raise NotImplementedError


class ChatCompletionRequest(GenerationRequest):
    """`POST /v1/chat/completions`."""

    messages: list[ChatMessage] = Field(min_length=1, max_length=4096)
    max_completion_tokens: int | None = Field(default=None, ge=1, le=_TOKENS_MAX)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)
    tools: Tools = Field(default_factory=list)
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool = True

    @model_validator(mode="after")
    def _chat_agrees(self) -> ChatCompletionRequest:
        if None not in (self.max_tokens, self.max_completion_tokens) and self.max_tokens != self.max_completion_tokens:
            raise problem("and max_tokens differ; send one of them", at=("max_completion_tokens",))
        if self.top_logprobs is not None and not self.logprobs:
            raise problem("needs logprobs: true", at=("top_logprobs",))
        self._check_tools()
        return self

    def _check_tools(self) -> None:
        names = [tool.function.name for tool in self.tools]
        for index, tool in enumerate(self.tools):
            if tool.function.name in names[:index]:
                raise problem("is in tools twice", at=("tools", index, "function", "name"))
            if tool.function.strict and not self.forces_tool:
                raise problem(
                    'true needs tool_choice "required" or a named function; leave it out otherwise',
                    at=("tools", index, "function", "strict"),
                    kind="unsupported",
                )
        if self.forces_tool and not self.tools:
            raise problem("needs tools", at=("tool_choice",))
        if self.forced_name is not None and self.forced_name not in names:
            raise problem(f"names the function {self.forced_name}, which is not in tools", at=("tool_choice",))
        if self.calls_tools and self.response_format is not None and self.response_format.type != "text":
            raise problem(
                'and tools exclude each other; send tool_choice "none" or leave one of them out',
                at=("response_format",),
                kind="unsupported",
            )

    @property
    def token_limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def alternatives(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def calls_tools(self) -> bool:
        """The answer may hold tool calls."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def forces_tool(self) -> bool:
        """The answer must be a tool call."""
        return self.tool_choice not in (None, "none", "auto")

    @property
    def forced_name(self) -> str | None:
        """The function that `tool_choice` names."""
        return self.tool_choice["function"]["name"] if isinstance(self.tool_choice, dict) else None

    def tool_dicts(self) -> list[dict[str, Any]]:
        """`tools` as JSON objects, for the template and `forced_schema`."""
        return [tool.model_dump(exclude_none=True, exclude_defaults=True) for tool in self.tools]

    def template_messages(self) -> list[dict[str, Any]]:
        """`messages` as chat templates expect them."""
        return [message.for_template() for message in self.messages]


class CompletionRequest(GenerationRequest):
    """`POST /v1/completions`, with one prompt."""

    prompt: Annotated[str | list[int], PlainValidator(fields.prompt)]
    logprobs: int | None = Field(default=None, ge=0, le=LOGPROBS_MAX)

    @property
    def alternatives(self) -> int | None:
        return self.logprobs


class TokenizeRequest(Strict):
    """`POST /tokenize`: a prompt, or messages through the chat template."""

    model: str = Field(min_length=1, max_length=256)
    prompt: str | None = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1, max_length=4096)
    tools: Tools = Field(default_factory=list)
    add_special_tokens: bool | None = None
    """Unset: True for a prompt, False for messages."""
    add_generation_prompt: bool = True

    @model_validator(mode="after")
    def _one_of(self) -> TokenizeRequest:
        if (self.prompt is None) == (self.messages is None):
            raise problem("Send either prompt or messages")
        return self

    @property
    def special_tokens(self) -> bool:
        """Whether the tokenizer adds its own."""
        return self.messages is None if self.add_special_tokens is None else self.add_special_tokens

    def tool_dicts(self) -> list[dict[str, Any]]:
        """`tools` as JSON objects, for the template."""
        return [tool.model_dump(exclude_none=True, exclude_defaults=True) for tool in self.tools]

    def template_messages(self) -> list[dict[str, Any]]:
        """`messages` as chat templates expect them."""
        return [message.for_template() for message in self.messages or []]


class DetokenizeRequest(Strict):
    """`POST /detokenize`."""

    model: str = Field(min_length=1, max_length=256)
    tokens: list[Annotated[int, Field(ge=0, lt=fields.TOKEN_ID_END)]] = Field(max_length=1024 * 1024)


Request = ChatCompletionRequest | CompletionRequest | TokenizeRequest | DetokenizeRequest

_KINDS: dict[Kind, tuple[type[Request], known.Defaults]] = {
    "chat": (ChatCompletionRequest, known.CHAT),
    "completion": (CompletionRequest, known.COMPLETION),
    "tokenize": (TokenizeRequest, known.NONE),
    "detokenize": (DetokenizeRequest, known.NONE),
}


@overload
def parse(kind: Literal["chat"], body: bytes) -> ChatCompletionRequest: ...
@overload
def parse(kind: Literal["completion"], body: bytes) -> CompletionRequest: ...
@overload
def parse(kind: Literal["tokenize"], body: bytes) -> TokenizeRequest: ...
@overload
def parse(kind: Literal["detokenize"], body: bytes) -> DetokenizeRequest: ...
def parse(kind: Kind, body: bytes) -> Request:
    """Read a request.

    Raises:
        InvalidRequestError: not JSON, or a field is wrong; `param` is its path.
        UnsupportedError: a field or value that isn't served.
    """
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(_not_json(body, error), code="invalid_json") from error
    # Each level costs at least one bracket, so short bodies need no walk.
    if body.count(b"{") + body.count(b"[") > DEPTH_MAX and _too_deep(raw):
        raise InvalidRequestError(f"The body is nested more than {DEPTH_MAX} levels deep.", code="invalid_json")
    if not isinstance(raw, dict):
        raise InvalidRequestError("The body must be a JSON object.")
    model, defaults = _KINDS[kind]
    try:
        return model.model_validate(known.strip(raw, model.model_fields, defaults))
    except ValidationError as error:
        raise to_error(error) from error


def _not_json(body: bytes, error: orjson.JSONDecodeError) -> str:
    if not body.strip():
        return "The body is empty; send a JSON object."
    try:
        body.decode()
    except UnicodeDecodeError as broken:
        return f"The body is not valid UTF-8 at byte {broken.start}."
    return f"The body is not valid JSON: {error}."


def _too_deep(raw: Any) -> bool:
    level = [raw]
    for _ in range(DEPTH_MAX + 1):
        level = [child for value in level for child in _containers(value)]
        if not level:
            return False
    return True


def _containers(value: Any) -> list[Any]:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [child for child in children if type(child) is dict or type(child) is list]
