"""How one response looks in JSON, streamed or whole: the shape of its route, with the request's options."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Protocol

from services.gateway.openai.chunks import ChatChunks, CompletionChunks
from services.gateway.openai.logprobs import chat_logprobs, completion_logprobs, text_length
from services.gateway.openai.responses import ChoiceResult, chat_response, completion_response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.gateway.generation.collect import Collected
    from services.gateway.generation.job import Job
    from services.gateway.mesh.workers import Logprobs
    from services.gateway.openai.chunks import Usage
    from services.gateway.openai.schemas import ChatCompletionRequest, CompletionRequest


class Format(Protocol):
    """One response's JSON."""

    include_usage: bool

    def role(self, choice: int) -> bytes | None:
        """The first chunk of a choice, where the route has one."""

    def text(self, choice: int, text: str) -> bytes:
        """A chunk of text alone: the hot path."""

    def rich(self, choice: int, text: str, tool_calls: list[dict[str, Any]], logprobs: Logprobs) -> bytes:
        """A chunk of text with what else came."""

    def finish(self, choice: int, reason: str) -> bytes:
        """The last chunk of a choice."""

    def usage(self, usage: Usage) -> bytes:
        """The chunk after all choices."""

    def whole(self, choices: Sequence[Collected], usage: Usage) -> bytes:
        """The body of a response that is not streamed."""


class ChatFormat:
    """`chat.completion` and its chunks."""

    def __init__(self, asked: ChatCompletionRequest, job: Job) -> None:
        self.include_usage = asked.include_usage
        self._job = job
        self._created = int(time.time())
        self._top = job.sampling.logprobs if job.sampling.HasField("logprobs") else None
        self._common = {"fingerprint": job.text.meta.version, "service_tier": asked.service_tier}
        chunks = ChatChunks(
            job.response_id, job.model, self._created, include_usage=asked.include_usage, **self._common
        )
        self._chunks = chunks
        self.role, self.text, self.finish, self.usage = chunks.role, chunks.text, chunks.finish, chunks.usage

    def rich(self, choice: int, text: str, tool_calls: list[dict[str, Any]], logprobs: Logprobs) -> bytes:
        """See `Format`."""
        delta: dict[str, Any] = {"content": text} if text or not tool_calls else {}
        if tool_calls:
            delta["tool_calls"] = tool_calls
        return self._chunks.delta(choice, delta, self._logprobs(logprobs))

    def whole(self, choices: Sequence[Collected], usage: Usage) -> bytes:
        """See `Format`."""
        results = [
            ChoiceResult(number, each.text, each.reason, each.tool_calls, self._logprobs(each.logprobs))
            for number, each in enumerate(choices)
        ]
        job = self._job
        return chat_response(job.response_id, job.model, self._created, results, usage, **self._common)

    def _logprobs(self, rows: Logprobs) -> dict[str, Any] | None:
        return None if self._top is None else chat_logprobs(self._job.text.vocabulary, rows, self._top)


class CompletionFormat:
    """`text_completion` and its chunks."""

    def __init__(self, asked: CompletionRequest, job: Job) -> None:
        self.include_usage = asked.include_usage
        self._job = job
        self._created = int(time.time())
        self._top = job.sampling.logprobs if job.sampling.HasField("logprobs") else None
        self._offsets = [0] * job.choices
        self._common = {"fingerprint": job.text.meta.version, "service_tier": asked.service_tier}
        chunks = CompletionChunks(
            job.response_id, job.model, self._created, include_usage=asked.include_usage, **self._common
        )
        self._chunks = chunks
        self.text, self.finish, self.usage = chunks.text, chunks.finish, chunks.usage

    def role(self, choice: int) -> None:
        """See `Format`: text completions begin without a role."""

    def rich(self, choice: int, text: str, tool_calls: list[dict[str, Any]], logprobs: Logprobs) -> bytes:
        """See `Format`."""
        del tool_calls  # text completions have none
        body = self._logprobs(logprobs, self._offsets[choice])
        if body is not None:
            self._offsets[choice] += text_length(body)
        return self._chunks.delta(choice, text, body)

    def whole(self, choices: Sequence[Collected], usage: Usage) -> bytes:
        """See `Format`."""
        results = [
            ChoiceResult(number, each.text, each.reason, [], self._logprobs(each.logprobs, 0))
            for number, each in enumerate(choices)
        ]
        job = self._job
        return completion_response(job.response_id, job.model, self._created, results, usage, **self._common)

    def _logprobs(self, rows: Logprobs, offset: int) -> dict[str, Any] | None:
        if self._top is None:
            return None
        return completion_logprobs(self._job.text.vocabulary, rows, self._top, text_offset=offset)
