"""The gRPC door: `penstock.v1.Inference`.

Requests go through the same schemas as HTTP's, so errors name the same fields.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any

import orjson
from google.protobuf import json_format
from penstock.v1 import inference_pb2 as pb
from penstock.v1 import inference_pb2_grpc

from services.common import logs, rpc
from services.common.errors import CancelledError_, InvalidRequestError, PenstockError
from services.common.ids import request_id_of, trace_id_of
from services.gateway.auth import authenticate
from services.gateway.generation.generator import Run
from services.gateway.generation.prepare import Wishes
from services.gateway.grpc.stream import EventStream
from services.gateway.openai.schemas import parse

if TYPE_CHECKING:
    import grpc

    from services.common.tenants import Tenant, Tenants
    from services.gateway.generation.generator import Generator
    from services.gateway.generation.job import Job
    from services.gateway.generation.prepare import Preparer
    from services.gateway.mesh.catalog import Catalog
    from services.gateway.metrics import Metrics

    Context = grpc.aio.ServicerContext[Any, Any]

log = logging.getLogger(__name__)

_NO_DEADLINE_S = 365 * 24 * 3600


class InferenceServicer(inference_pb2_grpc.InferenceServicer):
    """Chat, Generate, ListModels."""

    def __init__(
        self,
        tenants: Tenants,
        catalog: Catalog,
        preparer: Preparer,
        generator: Generator,
        metrics: Metrics,
        *,
        patience_s: float,
    ) -> None:
        self._tenants = tenants
        self._catalog = catalog
        self._preparer = preparer
        self._generator = generator
        self._metrics = metrics
        self._patience_s = patience_s

    async def Chat(self, request: pb.ChatRequest, context: Context) -> None:  # type: ignore[override]  # writes by context.write
        """See inference.proto."""

        async def prepare(wishes: Wishes) -> Job:
            return await self._preparer.chat(parse("chat", chat_body(request)), wishes)

        await self._serve(context, request.priority_class, prepare)

    async def Generate(self, request: pb.GenerateRequest, context: Context) -> None:  # type: ignore[override]  # writes by context.write
        """See inference.proto."""

        async def prepare(wishes: Wishes) -> Job:
            return await self._preparer.completion(parse("completion", completion_body(request)), wishes)

        await self._serve(context, request.priority_class, prepare)

    async def ListModels(self, request: pb.ListModelsRequest, context: Context) -> pb.ListModelsResponse:
        """See inference.proto."""
        try:
            self._tenant(context)
        except PenstockError as error:
            await rpc.abort(context, error)
        return pb.ListModelsResponse(
            models=[
                pb.Model(id=entry.name, context_length=entry.text.meta.context_length, ready=bool(entry.workers))
                for entry in self._catalog.entries()
                if entry.text is not None
            ]
        )

    def _tenant(self, context: Context) -> Tenant:
        metadata = _text_metadata(context)
        logs.request_id.set(request_id_of(metadata.get("x-request-id")))
        logs.trace_id.set(trace_id_of(metadata.get("traceparent")))
        tenant = authenticate(self._tenants, metadata.get("authorization"))
        logs.tenant.set(tenant.id)
        return tenant

    async def _serve(self, context: Context, priority_class: str, prepare: Any) -> None:
        arrived = time.monotonic()
        left = context.time_remaining()
        deadline = arrived + left if left is not None and left < _NO_DEADLINE_S else None
        outcome = CancelledError_.code  # unless we come to an end before the client leaves
        try:
            tenant = self._tenant(context)
            session = _text_metadata(context).get("x-penstock-session", "")
            wishes = Wishes(tenant, arrived, deadline, priority_class or None, "priority_class", session)
            job = await prepare(wishes)
            with self._generator.response():
                await self._stream(context, job)
            outcome = "ok"
        except PenstockError as error:
            outcome = error.code
            await rpc.abort(context, error)
        except Exception:
            log.exception("request failed")
            failure = PenstockError("an internal error; the gateway's log has the request id")
            outcome = failure.code
            await rpc.abort(context, failure)
        finally:
            self._metrics.requests.labels("grpc", outcome).inc()

    async def _stream(self, context: Context, job: Job) -> None:
        stream = EventStream(job)
        task = asyncio.create_task(self._generator.run(Run(job), stream))
        task.add_done_callback(lambda _: stream.wake.set())
        try:
            while True:
                await stream.wake.wait()
                stream.wake.clear()
                finished = task.done()
                for event in stream.take():
                    await self._write(context, event)
                if finished:
                    break
            usage = task.result()
            await self._write(
                context,
                pb.GenerateEvent(
                    usage=pb.Usage(
                        prompt_tokens=usage.prompt_tokens, cached_tokens=usage.cached_tokens,
                        completion_tokens=usage.completion_tokens,
                    )
                ),
            )  # fmt: skip
        finally:
            if stream.first_event_at is not None:
                self._metrics.ttft.labels(job.text.meta.model).observe(stream.first_event_at - job.arrived)
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # seen

    async def _write(self, context: Context, event: pb.GenerateEvent) -> None:
        try:
            async with asyncio.timeout(self._patience_s):
                await context.write(event)
        except TimeoutError:
            self._metrics.slow_clients.inc()
            raise CancelledError_(f"the client took nothing for {self._patience_s:g} s") from None


def _text_metadata(context: Context) -> dict[str, str]:
    return {key: value for key, value in context.invocation_metadata() or () if isinstance(value, str)}


def chat_body(request: pb.ChatRequest) -> bytes:
    """The same request as OpenAI JSON."""
    body: dict[str, Any] = {"model": request.model, "messages": [_message(each) for each in request.messages]}
    if request.tools_json:
        body["tools"] = _json("tools_json", request.tools_json)
    if request.tool_choice_json:
        body["tool_choice"] = _json("tool_choice_json", request.tool_choice_json)
    if request.HasField("cache"):
        body["cache"] = request.cache
    sampling = _sampling(request.sampling)
    if "logprobs" in sampling:
        sampling["top_logprobs"] = sampling["logprobs"]
        sampling["logprobs"] = True
    return orjson.dumps(body | sampling)


def completion_body(request: pb.GenerateRequest) -> bytes:
    """The same request as OpenAI JSON."""
    kind = request.WhichOneof("prompt")
    if kind is None:
        raise InvalidRequestError("set `text` or `token_ids`", param="prompt")
    prompt: str | list[int] = request.text if kind == "text" else list(request.token_ids.ids)
    body: dict[str, Any] = {"model": request.model, "prompt": prompt}
    if request.HasField("cache"):
        body["cache"] = request.cache
    return orjson.dumps(body | _sampling(request.sampling))


def _message(message: pb.ChatMessage) -> dict[str, Any]:
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls_json:
        body["tool_calls"] = _json("messages.tool_calls_json", message.tool_calls_json)
        body["content"] = message.content or None
    if message.tool_call_id:
        body["tool_call_id"] = message.tool_call_id
    return body


def _json(field: str, text: str) -> Any:
    try:
        return orjson.loads(text)
    except ValueError as error:
        raise InvalidRequestError(f"{field} is not JSON: {error}", param=field) from None


def _sampling(sampling: pb.Sampling) -> dict[str, Any]:
    body: dict[str, Any] = json_format.MessageToDict(sampling, preserving_proto_field_name=True)
    if "seed" in body:  # int64 is a string in protobuf's JSON
        body["seed"] = sampling.seed
    if body.pop("json_object", False):
        body["response_format"] = {"type": "json_object"}
    schema = body.pop("json_schema", None)
    if schema is not None:
        parsed = _json("sampling.json_schema", schema)
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": parsed}}
    return body
