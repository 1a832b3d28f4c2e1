"""A router and workers that do exactly what a test tells them, over real gRPC."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
from penstock.v1 import dispatch_pb2, dispatch_pb2_grpc, engine_pb2, engine_pb2_grpc

from services.common import rpc
from services.common.card import CardMeta, ModelCard
from services.common.frames import ATTACH_SERVICE, FinishReason, StepFrame, decode_tokens, encode_frame
from services.worker.attach import CardServicer
from tests.unit.gateway.text import tokenizers_made as made

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

MODEL = "m"
TEMPLATE = b"{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if tools %}tools\n{% endif %}"
TURN_S = 20.0
"""Seconds that a peer waits for what a test expects; a bound, not a measure."""


@cache
def card() -> ModelCard:
    """A model whose engine can do everything, with a small byte-level tokenizer."""
    tokenizer = made.byte_level()
    meta = CardMeta(
        model=MODEL, version="v1", engine="vllm", context_length=4096, eos_token_ids=(1,),
        vocab_size=tokenizer.get_vocab_size(with_added_tokens=True),
        capabilities=("logprobs", "structured_output", "penalties", "logit_bias", "sampling"),
    )  # fmt: skip
    return ModelCard(meta, {"tokenizer.json": tokenizer.to_str().encode(), "chat_template.jinja": TEMPLATE})


def ids(text: str) -> list[int]:
    """Token ids of `text`."""
    return list(made.byte_level().encode(text, add_special_tokens=False).ids)


class Turns:
    """Things that happened, in order, for a test to wait for."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def put(self, item: Any) -> None:
        """Something happened."""
        self._queue.put_nowait(item)

    async def get(self) -> Any:
        """The next thing."""
        async with asyncio.timeout(TURN_S):
            return await self._queue.get()

    @property
    def empty(self) -> bool:
        """Nothing has happened that wasn't taken."""
        return self._queue.empty()


class Attached:
    """A Submit as it came, and a way to answer it."""

    def __init__(self, worker: FakeWorker, context: Any, submit: engine_pb2.Submit) -> None:
        self.submit = submit
        self.tokens: list[int] = decode_tokens(submit.prompt).tolist()
        self._worker, self._context = worker, context
        self._next = [submit.first_index] * submit.choices

    async def send(
        self, tokens: Sequence[int] = (), *, choice: int = 0, first: int | None = None,
        finish: FinishReason | None = None, count: int | None = None, cached: int = 0, detail: str = "",
        logprobs: Sequence[float] | None = None,
    ) -> None:  # fmt: skip
        """One frame with `tokens` of a choice and, perhaps, its end. `first` and `count` say something else than
        the truth."""
        frame = StepFrame(self._worker.incarnation, 1)
        handle = self.submit.sequence + choice
        if tokens:
            start = frame.add_delta(handle, self._next[choice] if first is None else first, tokens)
            self._next[choice] += len(tokens)
            for at, value in enumerate(logprobs or ()):
                frame.add_logprob(start + at, value, [(tokens[at], value)])
        if finish is not None:
            frame.add_finish(
                handle, finish, prompt_tokens=self.submit.prompt_tokens, cached_tokens=cached,
                completion_tokens=self._next[choice] if count is None else count, detail=detail,
            )  # fmt: skip
        await self._context.write(encode_frame(frame))

    async def text(self, text: str, *, finish: FinishReason | None = FinishReason.STOP, choice: int = 0) -> None:
        """A text in one frame for each token, then the end."""
        tokens = ids(text)
        for token in tokens[:-1]:
            await self.send([token], choice=choice)
        await self.send(tokens[-1:], choice=choice, finish=finish)

    async def refuse(self) -> None:
        """Over the hard cap."""
        for choice in range(self.submit.choices):
            await self.send(choice=choice, finish=FinishReason.REFUSED, count=self.submit.first_index)


class FakeWorker:
    """Attach and the model card; `submits` and `aborts` say what gateways asked for."""

    _incarnations = itertools.count(1001)

    def __init__(self) -> None:
        self.incarnation = next(self._incarnations)
        self.address = ""
        self.submits, self.aborts, self.left = Turns(), Turns(), Turns()
        self._server = rpc.Server()
        self._cut = asyncio.Event()

    async def start(self) -> None:
        """Listen."""
        method = grpc.stream_stream_rpc_method_handler(
            self._attach, request_deserializer=engine_pb2.AttachBatch.FromString, response_serializer=bytes
        )
        self._server.grpc.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(ATTACH_SERVICE, {"Attach": method}),)
        )
        engine_pb2_grpc.add_EngineServicer_to_server(CardServicer(card()), self._server.grpc)
        self.address = await self._server.start("127.0.0.1", 0, [ATTACH_SERVICE])

    async def stop(self) -> None:
        """Close everything at once, as a crash does."""
        await self._server.stop()

    async def submit(self) -> Attached:
        """The next Submit."""
        attached: Attached = await self.submits.get()
        return attached

    async def send_raw(self, data: bytes) -> None:
        """Any bytes in place of a frame, to the gateway that submitted last."""
        await self._last.write(data)

    async def _attach(self, batches: AsyncIterator[engine_pb2.AttachBatch], context: Any) -> None:
        self._last = context
        try:
            async for batch in batches:
                for submit in batch.submits:
                    self.submits.put(Attached(self, context, submit))
                for handle in batch.aborts:
                    self.aborts.put(handle)
        finally:
            self.left.put(True)


class FakeRouter(dispatch_pb2_grpc.DispatchServicer):
    """Grants everything at once to the first worker of `workers` that is not excluded, unless `manual`."""

    def __init__(self, workers: Sequence[FakeWorker]) -> None:
        self.workers = list(workers)
        self.manual = False
        self.acquires, self.releases, self.bounces, self.withdraws = Turns(), Turns(), Turns(), Turns()
        self.yields, self.refusals = Turns(), Turns()
        self.address = ""
        self._leases = itertools.count(1)
        self._asked: dict[int, dispatch_pb2.Acquire] = {}
        self._requests: dict[int, int] = {}
        self._streams: list[rpc.Outbox[dispatch_pb2.RouterMessage]] = []
        self._server = rpc.Server()

    async def start(self, port: int = 0) -> None:
        """Listen."""
        dispatch_pb2_grpc.add_DispatchServicer_to_server(self, self._server.grpc)
        self.address = await self._server.start("127.0.0.1", port, ["penstock.v1.Dispatch"])

    async def stop(self) -> None:
        """Close everything at once."""
        await self._server.stop()

    def send(self, **message: Any) -> None:
        """A message to every gateway."""
        for outbox in self._streams:
            outbox.put(dispatch_pb2.RouterMessage(**message))

    def tell_models(self) -> None:
        """What workers there are."""
        addresses = [worker.address for worker in self.workers]
        self.send(model=dispatch_pb2.ModelUpdate(model=MODEL, card_hash=card().hash, workers=addresses))

    def grant(self, request: int, worker: FakeWorker, matched_tokens: int = 0) -> int:
        """The lease's number."""
        lease = next(self._leases)
        self._requests[lease] = request
        self.send(
            granted=dispatch_pb2.Granted(
                request=request,
                lease=lease,
                worker=worker.address,
                incarnation=worker.incarnation,
                matched_tokens=matched_tokens,
            )
        )
        return lease

    def reject(self, request: int, reason: dispatch_pb2.RejectReason.ValueType, retry_after_ms: int = 0) -> None:
        """Refuse a request."""
        self.send(rejected=dispatch_pb2.Rejected(request=request, reason=reason, retry_after_ms=retry_after_ms))

    def preempt(self, lease: int) -> None:
        """Ask for a lease back."""
        self.send(preempt=dispatch_pb2.Preempt(lease=lease))

    def cut(self) -> None:
        """End all streams."""
        for outbox in self._streams:
            outbox.close()

    async def Dispatch(  # type: ignore[override]  # mypy-protobuf types the synchronous API
        self, request_iterator: AsyncIterator[dispatch_pb2.GatewayBatch], context: Any
    ) -> None:
        """See dispatch.proto."""
        outbox: rpc.Outbox[dispatch_pb2.RouterMessage] = rpc.Outbox(1000)
        self._streams.append(outbox)
        outbox.put(dispatch_pb2.RouterMessage(welcome=dispatch_pb2.RouterWelcome(router_id="r", incarnation=1)))
        self.tell_models()
        try:
            async with asyncio.TaskGroup() as tasks:
                reader = tasks.create_task(self._read(request_iterator))
                while messages := await outbox.take():
                    await context.write(dispatch_pb2.RouterBatch(messages=messages))
                reader.cancel()
        finally:
            self._streams.remove(outbox)

    async def _read(self, batches: AsyncIterator[dispatch_pb2.GatewayBatch]) -> None:
        async for batch in batches:
            for message in batch.messages:
                self._take(message)

    def _take(self, message: dispatch_pb2.GatewayMessage) -> None:
        match message.WhichOneof("message"):
            case "acquire":
                self._asked[message.acquire.request] = message.acquire
                self.acquires.put(message.acquire)
                self._grant_some(message.acquire.request)
            case "bounced":
                self.bounces.put(message.bounced.lease)
                self._grant_some(self._requests[message.bounced.lease])
            case "yielded":
                self.yields.put(message.yielded.lease)
                self._grant_some(self._requests[message.yielded.lease])
            case "refused":
                self.refusals.put(message.refused.lease)
            case "release":
                self.releases.put(message.release)
            case "withdraw":
                self.withdraws.put(message.withdraw.request)

    def _grant_some(self, request: int) -> None:
        if self.manual:
            return
        excluded = self._asked[request].excluded_workers
        free = [worker for worker in self.workers if worker.incarnation not in excluded]
        if free:
            self.grant(request, free[0])
        else:
            self.reject(request, dispatch_pb2.NO_WORKERS)


@asynccontextmanager
async def running_peers(workers: int = 1, routers: int = 1) -> AsyncIterator[tuple[list[FakeRouter], list[FakeWorker]]]:
    """Started peers; stopped at the end."""
    fake_workers = [FakeWorker() for _ in range(workers)]
    for worker in fake_workers:
        await worker.start()
    fake_routers = [FakeRouter(fake_workers) for _ in range(routers)]
    for router in fake_routers:
        await router.start()
    try:
        yield fake_routers, fake_workers
    finally:
        for router in fake_routers:
            await router.stop()
        for worker in fake_workers:
            await worker.stop()
