"""One choice of one response: token ids in, text out, in order and exactly once.

What is emitted is a pure function of the token ids so far and the stop list (DESIGN 4); how the engine batched the
tokens doesn't matter, except that tokens which came together leave in one delta.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from services.common.errors import PenstockError, ProtocolError
from services.common.frames import FinishReason
from services.gateway.text.stops import StopMatcher

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from services.gateway.mesh.workers import Logprobs
    from services.gateway.text.detokenizer import Detokenizer
    from services.gateway.text.models import TextModel
    from services.gateway.text.tools import ToolDeltas


class ToolParser(Protocol):
    """Turns text into content and tool calls; see services/gateway/text/tools.py."""

    @property
    def made_calls(self) -> bool: ...

    def feed(self, text: str) -> ToolDeltas: ...

    def finish(self) -> ToolDeltas: ...


@dataclass(slots=True)
class Extra:
    """What a delta carries beside text, when it carries anything."""

    logprobs: Logprobs = field(default_factory=list)
    tool_calls: list[dict[str, Any]] = field(default_factory=list)


class Listener(Protocol):
    """Where a response goes. Called from the frame callback: quick, never blocking."""

    def on_delta(self, choice: int, text: str, last_index: int, extra: Extra | None) -> None:
        """New text of `choice`; `last_index` is the index of the last token it consumed."""

    def on_end(self, choice: int, reason: str, tokens: int) -> None:
        """`choice` is complete: `stop`, `length` or `tool_calls`, and how many tokens it has."""


class Owner(Protocol):
    """The generation that a choice belongs to."""

    def choice_ended(self, choice: Choice, *, early: bool) -> None:
        """`choice` is complete; `early` = the engine doesn't know yet (a stop string)."""

    def choice_failed(self, choice: Choice, error: PenstockError) -> None:
        """`choice` can't go on."""

    def choice_refused(self, choice: Choice) -> None:
        """The worker never started it."""

    def choice_lost(self, choice: Choice, why: str) -> None:
        """The worker went away in the middle of it."""

    def finish_error(self, reason: FinishReason, detail: str) -> PenstockError:
        """The error for an end that is not an answer's."""


class Choice:
    """A `Sink` of one sequence that feeds a `Listener`."""

    __slots__ = (
        "_detokenizer", "_hidden", "_listener", "_logprobs", "_owner", "_plain", "_stops", "_tools",
        "cached_tokens", "done", "number", "produced", "reason",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        owner: Owner,
        listener: Listener,
        text: TextModel,
        *,
        stops: Sequence[str] = (),
        tools: Callable[[int], ToolParser] | None = None,
        hidden: frozenset[int] = frozenset(),
    ) -> None:
        self.number = number
        self.produced: list[int] = []
        self.cached_tokens: int | None = None
        """As the engine says at its end; None while it hasn't, or where a stop string came first."""
        self.done = False
        self.reason = ""
        self._owner = owner
        self._listener = listener
        self._detokenizer: Detokenizer = text.vocabulary.detokenizer()
        self._stops = StopMatcher(stops) if stops else None
        self._tools = tools(number) if tools is not None else None
        self._hidden = hidden  # tokens that end an answer but would show as text
        self._logprobs: Logprobs = []
        self._plain = self._stops is None and self._tools is None

    def on_tokens(self, first_index: int, tokens: Sequence[int], logprobs: Logprobs | None) -> None:
        """Take tokens `first_index` onwards; what is known already is left out, a gap fails the choice."""
        if self.done:
            return
        if logprobs and len(logprobs) != len(tokens):
            self._fail(ProtocolError(f"{len(logprobs)} logprobs came for {len(tokens)} tokens"))
            return
        produced = self.produced
        known = len(produced) - first_index
        if known:
            if known < 0:
                self._fail(ProtocolError(f"the worker left out tokens {len(produced)} to {first_index - 1}"))
                return
            tokens = tokens[known:]
            logprobs = logprobs[known:] if logprobs else None
            if not tokens:
                return
        try:
            if self._plain and logprobs is None:
                produced.extend(tokens)
                text = self._detokenizer.push(tokens if tokens[-1] not in self._hidden else tokens[:-1])
                if text:
                    self._listener.on_delta(self.number, text, len(produced) - 1, None)
            else:
                self._take(tokens, logprobs)
        except Exception as error:  # one stream's fault must not end the frame for the others
            self._fail(PenstockError(f"the answer could not be processed: {error!r}"))

    def _take(self, tokens: Sequence[int], logprobs: Logprobs | None) -> None:
        """The general path: token by token, because a stop string ends the answer at one of them."""
        text, stopped = "", False
        for at, token in enumerate(tokens):
            self.produced.append(token)
            if logprobs:
                self._logprobs.append(logprobs[at])
            piece = self._detokenizer.push((token,)) if token not in self._hidden else ""
            if self._stops is not None and piece:
                piece, stopped = self._stops.feed(piece)
            text += piece
            if stopped:
                break
        self._emit(text)
        if stopped:
            self._end("stop", early=True)

    def _emit(self, text: str, *, last: bool = False) -> None:
        calls: list[dict[str, Any]] = []
        if self._tools is not None:
            deltas = self._tools.feed(text)
            text, calls = deltas.content, deltas.tool_calls
            if last:
                deltas = self._tools.finish()
                text, calls = text + deltas.content, calls + deltas.tool_calls
        if not (text or calls or (last and self._logprobs)):
            return
        extra = Extra(self._logprobs, calls) if self._logprobs or calls else None
        self._logprobs = []
        self._listener.on_delta(self.number, text, len(self.produced) - 1, extra)

    def _end(self, reason: str, *, early: bool) -> None:
        if early:
            self._emit("", last=True)
        else:
            rest = self._detokenizer.flush()
            if self._stops is not None:
                rest, stopped = self._stops.feed(rest)
                if stopped:
                    reason = "stop"
                else:
                    rest += self._stops.flush()
            self._emit(rest, last=True)
        self.done = True
        called = self._tools is not None and self._tools.made_calls
        self.reason = "tool_calls" if called and reason == "stop" else reason
        self._listener.on_end(self.number, self.reason, len(self.produced))
        self._owner.choice_ended(self, early=early)

    def on_finish(
        self, reason: FinishReason, prompt_tokens: int, cached_tokens: int, completion_tokens: int, detail: str
    ) -> None:
        """The engine ended the sequence."""
        if self.done:
            return
        if reason is FinishReason.REFUSED:
            self._owner.choice_refused(self)
            return
        if reason not in (FinishReason.STOP, FinishReason.LENGTH):
            self._fail(self._owner.finish_error(reason, detail))
            return
        if completion_tokens != len(self.produced):
            self._fail(ProtocolError(f"{len(self.produced)} tokens of {completion_tokens} arrived"))
            return
        self.cached_tokens = cached_tokens
        try:
            self._end("stop" if reason is FinishReason.STOP else "length", early=False)
        except Exception as error:  # as in on_tokens
            self._fail(PenstockError(f"the answer could not be processed: {error!r}"))

    def on_lost(self, why: str) -> None:
        """The worker went away."""
        if not self.done:
            self._owner.choice_lost(self, why)

    def _fail(self, error: PenstockError) -> None:
        self.done = True
        self._owner.choice_failed(self, error)
