"""From a validated request to a `Job`: model, template, tokens, sampling and bounds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

from penstock.v1 import dispatch_pb2

from services.common.errors import InvalidRequestError
from services.common.ids import new_response_id
from services.common.tenants import PriorityClassName
from services.gateway.generation.job import Job
from services.gateway.generation.prefix import session_key
from services.gateway.openai.sampling import check_prompt_tokens, deterministic, sampling_params
from services.gateway.text.tokenize import is_long
from services.gateway.text.tools import ForcedToolParser, ToolCallParser

if TYPE_CHECKING:
    from collections.abc import Callable

    from services.common.tenants import Tenant
    from services.gateway.generation.choice import ToolParser
    from services.gateway.mesh.catalog import Catalog
    from services.gateway.openai.schemas import (
        ChatCompletionRequest,
        CompletionRequest,
        DetokenizeRequest,
        GenerationRequest,
        TokenizeRequest,
    )
    from services.gateway.text.models import TextModel

CLASS_VALUES: dict[PriorityClassName, dispatch_pb2.PriorityClass.ValueType] = {
    "interactive": dispatch_pb2.INTERACTIVE,
    "standard": dispatch_pb2.STANDARD,
    "batch": dispatch_pb2.BATCH,
}


@dataclass(frozen=True, slots=True)
class Wishes:
    """What a request says outside its body."""

    tenant: Tenant
    arrived: float
    """Event-loop time."""
    deadline: float | None
    """Event-loop time; None = none."""
    priority_class: str | None
    """As the client wrote it (header or field)."""
    class_field: str = "x-penstock-class"
    """Where it wrote it."""
    session: str = ""
    """The client's name for the conversation (`x-penstock-session`); empty = the body's `user`."""


class Preparer:
    """Makes jobs."""

    def __init__(self, catalog: Catalog, *, max_tokens_default: int) -> None:
        self._catalog = catalog
        self._max_tokens_default = max_tokens_default

    async def chat(self, asked: ChatCompletionRequest, wishes: Wishes) -> Job:
        """A chat completion.

        Raises:
            PenstockError: unknown model, a field the model can't serve, a prompt over the context.
        """
        text = await self._catalog.get(asked.model, wishes.deadline)
        prompt = await self._render(asked, text, generation_prompt=True)
        job = self._job("chatcmpl", asked, wishes, text, prompt)
        if asked.calls_tools:
            job.tools = _tool_parser(asked, job.response_id)
        return job

    async def completion(self, asked: CompletionRequest, wishes: Wishes) -> Job:
        """A text completion. Raises as `chat`."""
        text = await self._catalog.get(asked.model, wishes.deadline)
        if isinstance(asked.prompt, str):
            prompt = await _encode(text, asked.prompt, special_tokens=True)
        else:
            prompt = asked.prompt
            check_prompt_tokens(prompt, text.meta)
        return self._job("cmpl", asked, wishes, text, prompt)

    async def tokenize(self, asked: TokenizeRequest) -> tuple[TextModel, list[int]]:
        """Token ids of a prompt or of rendered messages."""
        text = await self._catalog.get(asked.model)
        if asked.prompt is not None:
            return text, await _encode(text, asked.prompt, special_tokens=asked.special_tokens)
        return text, await self._render(asked, text, generation_prompt=asked.add_generation_prompt)

    async def detokenize(self, asked: DetokenizeRequest) -> str:
        """Text of token ids, special ones included."""
        text = await self._catalog.get(asked.model)
        check_prompt_tokens(asked.tokens, text.meta)
        return text.tokenization.decode(asked.tokens, skip_special_tokens=False)

    async def _render(
        self, asked: ChatCompletionRequest | TokenizeRequest, text: TextModel, *, generation_prompt: bool
    ) -> list[int]:
        tools = asked.tool_dicts() or None
        if getattr(asked, "tool_choice", None) == "none":
            tools = None
        rendered = text.template.render(asked.template_messages(), tools, add_generation_prompt=generation_prompt)
        return await _encode(text, rendered, special_tokens=False)

    def _job(self, kind: str, asked: GenerationRequest, wishes: Wishes, text: TextModel, prompt: list[int]) -> Job:
        max_tokens = self._max_tokens(asked, text, len(prompt))
        params = sampling_params(asked, text.meta, max_tokens=max_tokens)
        tenant = wishes.tenant
        wants_cache = tenant.response_cache if asked.cache is None else asked.cache
        return Job(
            response_id=new_response_id(kind), model=asked.model, text=text, prompt=prompt, sampling=params,
            choices=asked.n, tenant=tenant, priority_class=_priority(asked, wishes), deadline=wishes.deadline,
            stops=tuple(asked.stop), arrived=wishes.arrived,
            session=session_key(tenant, wishes.session or asked.user or ""),
            use_cache=wants_cache and deterministic(asked) and not params.HasField("logprobs"),
        )  # fmt: skip

    def _max_tokens(self, asked: GenerationRequest, text: TextModel, prompt_tokens: int) -> int:
        context = text.meta.context_length
        left = context - prompt_tokens
        if prompt_tokens == 0:
            raise InvalidRequestError("the prompt has no tokens", param="prompt")
        if left < 1:
            field = "messages" if hasattr(asked, "messages") else "prompt"
            raise InvalidRequestError(
                f"{field} of {prompt_tokens} tokens; {asked.model} takes {context} with the answer, shorten it",
                param=field,
                code="context_length_exceeded",
            )
        limit = asked.token_limit
        if limit is None:
            return min(left, self._max_tokens_default)
        if limit > left:
            raise InvalidRequestError(
                f"max_tokens is {limit}, but {left} of {context} tokens are left after the prompt ({prompt_tokens})",
                param="max_tokens",
                code="context_length_exceeded",
            )
        return limit


async def _encode(text: TextModel, prompt: str, *, special_tokens: bool) -> list[int]:
    encode = text.tokenization.encode
    if is_long(prompt) and (special_tokens or not text.tokenization.knows(prompt)):
        return await asyncio.to_thread(encode, prompt, add_special_tokens=special_tokens)
    return encode(prompt, add_special_tokens=special_tokens)


def _priority(asked: GenerationRequest, wishes: Wishes) -> dispatch_pb2.PriorityClass.ValueType:
    names = get_args(PriorityClassName)
    wanted = wishes.priority_class or asked.priority_class or "interactive"
    for name in names:
        if name == wanted:
            return CLASS_VALUES[wishes.tenant.clamp(name)]
    raise InvalidRequestError(
        f"{wishes.class_field} must be one of {', '.join(names)}, not {wanted[:32]!r}", param=wishes.class_field
    )


def _tool_parser(asked: ChatCompletionRequest, response_id: str) -> Callable[[int], ToolParser]:
    forced, name, parallel = asked.forces_tool, asked.forced_name, asked.parallel_tool_calls

    def make(choice: int) -> ToolParser:
        seed = f"{response_id}/{choice}"
        return ForcedToolParser(seed, name=name) if forced else ToolCallParser(seed, parallel=parallel)

    return make
