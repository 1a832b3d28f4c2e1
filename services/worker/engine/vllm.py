"""vLLM as an `Engine`: token ids in, one `EngineStep` per step of the engine core out.

vLLM calls a stat logger once per engine step, right after it has put the step's outputs into the requests' collectors.
That call is our step boundary: it empties all collectors at once, so there is no task and no wake-up per sequence, and
a step is never torn. Submits and aborts go through one ordered inbox, because vLLM's calls for them wait.

Import only after `vllm_env.environment` has been applied.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from vllm.exceptions import GracefulHTTPError, VLLMClientError
from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind, SamplingParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError as VllmDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from services.common.frames import FinishReason
from services.worker.engine.base import (
    EngineDeadError,
    EngineInfo,
    EngineLoad,
    EngineStartError,
    EngineStep,
    Finish,
    StepCost,
)
from services.worker.engine.kv_map import KvMap
from services.worker.engine.vllm_args import parse_flags, sampling_params
from services.worker.engine.vllm_kv import KvSubscriber

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from services.worker.engine.base import EngineRequest, KvChange
    from services.worker.settings import WorkerSettings

log = logging.getLogger(__name__)

_REASONS = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH}
_WARM_UP = list(range(1, 17))
"""Token ids of the dummy request; any model has them."""


class _StepListener(StatLoggerBase):  # type: ignore[misc]  # vLLM is not typed
    """vLLM's call per engine step."""

    def __init__(self, on_step: Callable[[Any, Any], None]) -> None:
        self._on_step = on_step

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        self._on_step(scheduler_stats, iteration_stats)

    def log_engine_initialized(self) -> None:
        """Nothing to say: the worker logs its own phases."""


class VllmEngine:
    """An `Engine` around `AsyncLLM`."""

    def __init__(self, settings: WorkerSettings, flags: Sequence[str], version: str) -> None:
        self._args, self._loras = parse_flags(settings, flags)
        self._version = version
        self._kv: KvSubscriber | None = None
        if settings.kv_events:
            self._kv = KvSubscriber.of(self._args)
        self._llm: AsyncLLM
        self._inbox: deque[EngineRequest | list[int]] = deque()
        self._arrived = asyncio.Event()
        self._ready: deque[EngineStep] = deque()
        self._stepped = asyncio.Event()
        self._stopped = False
        self._live: dict[int, EngineRequest] = {}
        self._collectors: dict[int, Any] = {}  # of sequences that vLLM has
        self._silent: set[int] = set()  # live sequences without a token yet
        self._running = 0
        self._kv_blocks = 0
        self._kv_used = 0.0
        self._step_began = 0.0

    async def start(self) -> EngineInfo:
        """See `Engine`. Blocks the event loop while the model loads."""
        began = time.monotonic()
        log.info("loading the model", extra={"phase": "load", "model": self._args.model})
        try:
            self._llm = AsyncLLM.from_engine_args(
                self._args, stat_loggers=[lambda _config, _index: _StepListener(self._on_step)]
            )
        except (ValueError, RuntimeError, NotImplementedError, OSError) as error:
            raise EngineStartError(f"vLLM can't start: {error}") from error
        loaded = time.monotonic()
        log.info("model loaded", extra={"phase": "warm-up", "seconds": round(loaded - began, 3)})
        await self._warm_up()
        log.info("engine warm", extra={"phase": "warm", "seconds": round(time.monotonic() - loaded, 3)})
        config = self._llm.vllm_config
        self._kv_blocks = config.cache_config.num_gpu_blocks or 0
        return EngineInfo(
            kind="vllm",
            context_length=config.model_config.max_model_len,
            kv_blocks=self._kv_blocks,
            kv_block_size=config.cache_config.block_size,
            capabilities=(
                "logprobs",
                "structured_output",
                "penalties",
                "logit_bias",
                "sampling",
                *(("lora",) if self._loras else ()),
            ),
            loras=tuple(self._loras),
            kv_events=self._reports_kv(),
        )

    async def _warm_up(self) -> None:
        """One dummy request, so that the first client pays for no lazy start."""
        params = SamplingParams(
            max_tokens=4, temperature=0.0, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.FINAL_ONLY
        )
        async for _ in self._llm.generate(tokens_input(_WARM_UP), params, "warm-up"):
            pass

    def submit(self, requests: Sequence[EngineRequest]) -> None:
        """See `Engine`."""
        if not self._live:
            self._step_began = time.monotonic()
        for request in requests:
            self._live[request.id] = request
            self._silent.add(request.id)
        self._inbox.extend(requests)
        self._arrived.set()

    def abort(self, ids: Sequence[int]) -> None:
        """See `Engine`."""
        known = [id_ for id_ in ids if id_ in self._live]
        for id_ in known:
            self._forget(id_)
        if known:
            self._inbox.append(known)
            self._arrived.set()

    def _reports_kv(self) -> bool:
        if self._kv is not None and not self._llm.vllm_config.cache_config.enable_prefix_caching:
            self._kv.close()
            self._kv = None
        return self._kv is not None

    async def kv_events(self) -> AsyncGenerator[KvChange, None]:
        """See `Engine`."""
        if self._kv is None:
            raise RuntimeError("this engine has no KV events: see `EngineInfo.kv_events`")
        config = self._llm.vllm_config.cache_config
        blocks = KvMap(self._version, blocks_max=self._kv_blocks)
        log.info("following vLLM's KV events", extra={"block_size": config.block_size, "blocks": self._kv_blocks})
        async with contextlib.aclosing(self._kv.changes(blocks)) as changes:
            async for change in changes:
                yield change

    def load(self) -> EngineLoad:
        """See `Engine`. Prompts count as queued until their first token: vLLM doesn't tell how far they are."""
        live = len(self._live)
        running = min(self._running, live)
        return EngineLoad(
            running=running,
            waiting=live - running,
            free_kv_blocks=round(self._kv_blocks * (1.0 - self._kv_used)) if live else self._kv_blocks,
            queued_prefill_tokens=sum(len(self._live[id_].tokens) for id_ in self._silent),
        )

    async def steps(self) -> AsyncGenerator[EngineStep, None]:
        """See `Engine`. To be iterated, and closed, by one task."""
        async with asyncio.TaskGroup() as tasks:
            helpers = [tasks.create_task(self._feed()), tasks.create_task(self._watch())]
            while not self._stopped:
                self._stepped.clear()
                while self._ready:
                    yield self._ready.popleft()
                await self._stepped.wait()
            for helper in helpers:
                helper.cancel()

    async def stop(self) -> None:
        """See `Engine`. vLLM's own processes end with this one, by the guardian: their own way out takes 5 s."""
        self._stopped = True
        self._stepped.set()
        if self._kv is not None:
            self._kv.close()

    async def _watch(self) -> None:
        """vLLM's output task ends only when the engine core is lost."""
        await asyncio.wait({self._llm.output_handler})
        if not self._stopped:
            raise EngineDeadError("vLLM's engine core is dead")

    async def _feed(self) -> None:
        """Hand submits and aborts to vLLM in their order."""
        while True:
            while self._inbox:
                item = self._inbox.popleft()
                if isinstance(item, list):
                    await self._llm.abort([str(id_) for id_ in item])
                elif item.id in self._live:
                    await self._add(item)
            self._arrived.clear()
            await self._arrived.wait()

    async def _add(self, request: EngineRequest) -> None:
        try:
            collector = await self._llm.add_request(
                str(request.id),
                tokens_input(request.tokens.tolist(), cache_salt=request.cache_salt or None),
                sampling_params(request),
                lora_request=self._loras.get(request.lora),
                priority=request.priority,
            )
        except VllmDeadError as error:
            raise EngineDeadError(str(error)) from error
        except (VLLMClientError, GracefulHTTPError, ValueError, TypeError, NotImplementedError) as error:
            if self._live.pop(request.id, None) is not None:
                self._silent.discard(request.id)
                self._emit(EngineStep(finishes=[Finish(request.id, FinishReason.INVALID, _refusal(error))]))
        else:
            if request.id in self._live:  # or it was aborted meanwhile: the abort is next in the inbox
                self._collectors[request.id] = collector

    def _on_step(self, scheduler: Any, iteration: Any) -> None:
        """One step of the engine core is over: collect what it produced."""
        if scheduler is not None:
            self._running = scheduler.num_running_reqs
            self._kv_used = scheduler.kv_cache_usage
        step = EngineStep()
        for id_, collector in list(self._collectors.items()):
            output = collector.get_nowait()
            if output is not None:
                self._collect(id_, output, step)
        if not step.ids and not step.finishes:
            return
        now = time.monotonic()
        prefill = iteration.prompt_token_stats.computed if iteration is not None else 0
        step.cost = StepCost((now - self._step_began) * 1e3, prefill, max(len(step.ids), self._running))
        self._step_began = now
        self._emit(step)

    def _collect(self, id_: int, output: Any, step: EngineStep) -> None:
        answer = output.outputs[0]
        tokens = list(answer.token_ids)
        if tokens:
            if id_ in self._silent:
                self._silent.discard(id_)
                step.cached.append((id_, output.num_cached_tokens or 0))
            if answer.logprobs is not None:
                _add_logprobs(self._live[id_].sampling.logprobs, tokens, answer.logprobs, step)
            step.ids.append(id_)
            step.counts.append(len(tokens))
            step.tokens.extend(tokens)
        if output.finished:
            reason = _REASONS.get(answer.finish_reason, FinishReason.FAILED)
            detail = "" if reason is not FinishReason.FAILED else f"vLLM ended it: {answer.finish_reason}"
            step.finishes.append(Finish(id_, reason, detail))
            self._forget(id_)

    def _forget(self, id_: int) -> None:
        self._live.pop(id_, None)
        self._collectors.pop(id_, None)
        self._silent.discard(id_)

    def _emit(self, step: EngineStep) -> None:
        self._ready.append(step)
        self._stepped.set()


def _refusal(error: Exception) -> str:
    """vLLM's words, after the field where it names one."""
    text, parameter = str(error), getattr(error, "parameter", None)
    if text.startswith("sampling."):
        return text
    return f"sampling.{parameter}: {text}" if parameter else f"sampling: {text}"


def _add_logprobs(top: int, tokens: Sequence[int], logprobs: Sequence[dict[int, Any]], step: EngineStep) -> None:
    """vLLM gives {token: Logprob} per position: the `top` best, and the chosen one when it is not among them."""
    start = len(step.tokens)
    for offset, (token, found) in enumerate(zip(tokens, logprobs, strict=True)):
        best = sorted(found.items(), key=lambda entry: -entry[1].logprob)[:top]
        step.logprobs.append((start + offset, found[token].logprob, [(other, value.logprob) for other, value in best]))
