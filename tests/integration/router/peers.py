"""A router in this process, and small gateways and workers that talk to it over real gRPC."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from penstock.v1 import dispatch_pb2, dispatch_pb2_grpc, registry_pb2, registry_pb2_grpc

from services.common.rpc import channel
from services.router.app import Router
from services.router.settings import RouterSettings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    import grpc.aio


@asynccontextmanager
async def running_router(**settings: Any) -> AsyncIterator[tuple[Router, str]]:
    """A router and its address; stopped at the end."""
    router = Router(RouterSettings(port=0, **settings))
    async with asyncio.TaskGroup() as tasks:
        addresses = await router.start(tasks)
        try:
            yield router, addresses["grpc"]
        finally:
            await router.stop()


class Gateway:
    """One Dispatch stream. Messages of the router come one by one from `next`."""

    def __init__(self, address: str, name: str = "gateway-0") -> None:
        self._channel = channel(address)
        stub: dispatch_pb2_grpc.DispatchAsyncStub = dispatch_pb2_grpc.DispatchStub(self._channel)
        self.call: grpc.aio.StreamStreamCall[Any, Any] = stub.Dispatch(wait_for_ready=True)
        self.name = name
        self.models: dict[str, dispatch_pb2.ModelUpdate] = {}
        self._unread: list[dispatch_pb2.RouterMessage] = []

    async def __aenter__(self) -> Gateway:
        await self.send(hello=dispatch_pb2.GatewayHello(gateway_id=self.name))
        assert (await self.read()).WhichOneof("message") == "welcome"
        return self

    async def __aexit__(self, *error: object) -> None:
        self.call.cancel()
        await self._channel.close()

    async def send(self, **message: Any) -> None:
        """One message, e.g. `send(release=Release(...))`."""
        await self.call.write(dispatch_pb2.GatewayBatch(messages=[dispatch_pb2.GatewayMessage(**message)]))

    async def acquire(self, number: int, model: str = "m", **fields: Any) -> None:
        """Ask for a lease of a small request, unless `fields` say otherwise."""
        fields = {"prompt_tokens": 16, "max_tokens": 16, "choices": 1, "response_id": f"r-{number}", **fields}
        await self.send(acquire=dispatch_pb2.Acquire(request=number, model=model, **fields))

    async def read(self) -> dispatch_pb2.RouterMessage:
        """The next message of any kind."""
        while not self._unread:
            batch = await self.call.read()
            assert isinstance(batch, dispatch_pb2.RouterBatch), "the router ended the stream"
            self._unread.extend(batch.messages)
        return self._unread.pop(0)

    async def next(self) -> Any:
        """The next decision; model updates are kept in `models`."""
        while True:
            message = await self.read()
            kind = message.WhichOneof("message")
            assert kind is not None
            if kind != "model":
                return getattr(message, kind)
            self.models[message.model.model] = message.model

    async def knows(self, model: str, workers: int) -> dispatch_pb2.ModelUpdate:
        """Read until the model has so many workers."""
        while (known := self.models.get(model)) is None or len(known.workers) != workers:
            message = await self.read()
            assert message.WhichOneof("message") == "model", message
            self.models[message.model.model] = message.model
        return known


class Worker:
    """One Register stream."""

    def __init__(self, address: str, incarnation: int = 1, **fields: Any) -> None:
        self._channel = channel(address)
        stub: registry_pb2_grpc.RegistryAsyncStub = registry_pb2_grpc.RegistryStub(self._channel)
        self.call: grpc.aio.StreamStreamCall[Any, Any] = stub.Register(wait_for_ready=True)
        self.registration = registry_pb2.Registration(
            **{
                "worker_id": f"worker-{incarnation}",
                "incarnation": incarnation,
                "address": f"127.0.0.1:{9000 + incarnation}",
                "models": ["m"],
                "card_hash": "card",
                "context_length": 4096,
                "max_sequences": 2,
                "kv_blocks": 1024,
                "kv_block_size": 16,
                "engine": "sim",
                **fields,
            }
        )
        self.registration.report.CopyFrom(self.idle())

    def idle(self, **fields: Any) -> registry_pb2.LoadReport:
        """A report of an empty engine, but for `fields`."""
        return registry_pb2.LoadReport(**{"free_kv_blocks": self.registration.kv_blocks, **fields})

    async def __aenter__(self) -> Worker:
        await self.call.write(registry_pb2.WorkerMessage(registration=self.registration))
        answer = await self.call.read()
        assert isinstance(answer, registry_pb2.RegistryMessage), "the router ended the stream"
        return self

    async def __aexit__(self, *error: object) -> None:
        self.call.cancel()
        await self._channel.close()

    async def report(self, **fields: Any) -> None:
        """Send a load report."""
        await self.call.write(registry_pb2.WorkerMessage(report=self.idle(**fields)))
