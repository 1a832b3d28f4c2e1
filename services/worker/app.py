"""Wires a worker: card, engine, hub, the gRPC face and the registrations."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING

import uvloop
from penstock.v1 import engine_pb2_grpc, registry_pb2

from services.common import lifecycle, rpc
from services.common.card import CardError
from services.common.frames import ATTACH_SERVICE
from services.common.ids import new_incarnation
from services.worker import card as cards
from services.worker.attach import AttachServicer, CardServicer
from services.worker.engine import vllm_env
from services.worker.engine.base import EngineDeadError, EngineStartError
from services.worker.engine.sim import SimEngine
from services.worker.engine.sim_core import SimModel
from services.worker.hub import Hub
from services.worker.registration import Registrar
from services.worker.submits import Limits

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from services.common.card import ModelCard
    from services.worker.engine.base import Engine, EngineInfo
    from services.worker.settings import WorkerSettings

log = logging.getLogger(__name__)

STOP_S = 0.5
"""Seconds that ended streams get to send their status."""
ENGINE_DEAD_STATUS = 70
"""Exit status of a worker whose engine died (EX_SOFTWARE)."""


def make_engine(settings: WorkerSettings, source: cards.ModelSource, engine_flags: Sequence[str]) -> Engine:
    """The engine that the settings ask for, not started.

    Raises:
        CardError: the model's tokenizer can't be used.
        EngineStartError: flags or settings that the engine can't have.
    """
    if settings.engine == "vllm":
        os.environ.update(
            vllm_env.environment(
                os.environ,
                tensor_parallel_size=settings.tensor_parallel_size,
                max_sequences=settings.max_sequences,
                cpus=sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (),
                debug=settings.log_level == "debug",
            )
        )
        log.info("importing vLLM", extra={"phase": "import"})
        from services.worker.engine.vllm import VllmEngine  # vLLM and torch: only where they are needed

        return VllmEngine(settings, engine_flags, cards.model_version(source, "vllm"))
    vocabulary = cards.ordinary_tokens(cards.tokenizer_bytes(source), cards.vocabulary_size(source))
    model = SimModel(
        prefill_tokens_per_s=settings.sim_prefill_tokens_per_s,
        base_ms=settings.sim_base_ms,
        per_sequence_ms=settings.sim_per_sequence_ms,
        step_ms=settings.sim_step_ms,
        kv_tokens=settings.sim_kv_tokens,
        max_running=settings.max_sequences,
        max_batched_tokens=settings.sim_max_batched_tokens,
    )
    return SimEngine(
        model,
        vocabulary,
        settings.sim_context_length,
        version=cards.model_version(source, "sim"),
        kv_events=settings.kv_events,
    )


class Worker:
    """A `lifecycle.Service` around an engine that is started and warm."""

    def __init__(self, settings: WorkerSettings, engine: Engine, info: EngineInfo, card: ModelCard) -> None:
        loop = asyncio.get_running_loop()
        self._settings, self._engine, self._info, self.card = settings, engine, info, card
        self.incarnation = new_incarnation()
        self.registrar = Registrar(settings.routers, time.monotonic, reports_blocks=info.kv_events)
        limits = Limits(
            vocab_size=card.meta.vocab_size,
            context_length=info.context_length,
            max_logprobs=card.meta.max_logprobs,
            capabilities=info.capabilities,
            loras=info.loras,
        )
        self.hub = Hub(engine, limits, self.incarnation, settings.max_sequences, loop.call_later, self.registrar)
        self.registrar.bind(engine.load, self._registration, lambda: self.hub.draining)
        self.attach = AttachServicer(self.hub, self.incarnation, settings.gateway_lag_bytes, settings.gateway_lag_s)
        self._server = rpc.Server()
        self._address = ""

    async def start(self, tasks: asyncio.TaskGroup) -> Mapping[str, str]:
        """See `lifecycle.Service`."""
        settings = self._settings
        self._server.grpc.add_generic_rpc_handlers((self.attach.handler(),))
        engine_pb2_grpc.add_EngineServicer_to_server(CardServicer(self.card), self._server.grpc)
        listening = await self._server.start(settings.host, settings.port, [ATTACH_SERVICE])
        self._address = _advertised(settings.advertise, listening)
        tasks.create_task(self._run_engine(), name="engine steps")
        if self._info.kv_events:
            tasks.create_task(self._run_kv_events(), name="kv events")
        self.registrar.run(tasks)
        await self._server.ready(True)
        log.info("worker up", extra={"incarnation": self.incarnation, "card": self.card.hash})
        return {"grpc": self._address}

    async def drain(self) -> None:
        """See `lifecycle.Service`: routers send no more, what runs goes on to its end."""
        self.hub.drain()
        await self._server.ready(False)
        await self.hub.idle()
        await self.attach.close()

    async def stop(self) -> int:
        """See `lifecycle.Service`."""
        cut = len(self.hub)
        await self._server.stop(STOP_S)
        await self._engine.stop()
        return cut

    async def _run_engine(self) -> None:
        try:
            async with contextlib.aclosing(self._engine.steps()) as steps:
                async for step in steps:
                    self.hub.deliver(step)
        except* EngineDeadError as error:
            # At once and without clean-up: gateways fail over when the connection closes, the guardian ends the rest.
            log.critical("the engine is dead", exc_info=error)
            logging.shutdown()
            os._exit(ENGINE_DEAD_STATUS)

    async def _run_kv_events(self) -> None:
        async with contextlib.aclosing(self._engine.kv_events()) as changes:
            async for change in changes:
                self.registrar.blocks_changed(change)

    def _registration(self) -> registry_pb2.Registration:
        return registry_pb2.Registration(
            worker_id=self._settings.worker_id,
            incarnation=self.incarnation,
            address=self._address,
            models=[self.card.meta.model, *self.card.meta.lora],
            card_hash=self.card.hash,
            context_length=self._info.context_length,
            max_sequences=self._settings.max_sequences,
            kv_blocks=self._info.kv_blocks,
            kv_block_size=self._info.kv_block_size,
            engine=self._info.kind,
            leases=self.hub.leases,
            reports_blocks=self._info.kv_events,
        )


def _advertised(advertise: str, listening: str) -> str:
    """What gateways dial: `advertise`, with the listening port where it names none."""
    if not advertise:
        return listening
    return advertise if ":" in advertise else f"{advertise}:{listening.rpartition(':')[2]}"


def run(settings: WorkerSettings, engine_flags: Sequence[str], scratch: str) -> int:
    """Start the engine, then serve until told to stop; the exit status, after saying why it isn't 0.

    The engine loads before the signals are taken over: a worker that isn't serving has nothing to drain, so SIGTERM
    ends it at once. `scratch` is a folder for the engine's sockets.
    """
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)  # never closed: the process ends right after
    os.environ.setdefault("VLLM_RPC_BASE_PATH", scratch)
    try:
        worker = runner.run(load(settings, engine_flags))
        runner.run(lifecycle.serve(worker, drain_s=settings.drain_s, announce_to=settings.announce))
    except (CardError, EngineStartError) as error:
        log.error("the worker can't start", extra={"reason": str(error)})
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception:
        log.exception("the worker failed")
        return 1
    return 0


async def load(settings: WorkerSettings, engine_flags: Sequence[str]) -> Worker:
    """A worker around a started and warm engine; it doesn't listen yet.

    Raises:
        CardError, EngineStartError: the model or the settings can't work; the message says what to change.
    """
    source = cards.ModelSource(settings.model, settings.revision)
    cards.tokenizer_bytes(source)  # refuse a model without one before its weights are read
    engine = make_engine(settings, source, engine_flags)
    began = time.monotonic()
    info = await engine.start()
    log.info("engine ready", extra={"phase": "ready", "seconds": round(time.monotonic() - began, 3)})
    return Worker(settings, engine, info, cards.build(source, settings.served_name, info))
