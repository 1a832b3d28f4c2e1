"""The OpenAI routes: parse, prepare, generate, answer."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import aiohttp
import orjson
from aiohttp import web

from services.common import logs
from services.common.errors import (
    CancelledError_,
    InvalidRequestError,
    NotFoundError,
    PayloadTooLargeError,
    PenstockError,
)
from services.gateway.auth import authenticate
from services.gateway.generation.collect import Collector
from services.gateway.generation.generator import Run
from services.gateway.generation.prepare import Wishes
from services.gateway.http.format import ChatFormat, CompletionFormat
from services.gateway.http.sse import SseStream, event
from services.gateway.openai.errors import error_body
from services.gateway.openai.responses import detokenize_response, tokenize_response
from services.gateway.openai.schemas import parse

if TYPE_CHECKING:
    from services.common.tenants import Tenant, Tenants
    from services.gateway.generation.generator import Generator
    from services.gateway.generation.job import Job
    from services.gateway.generation.prepare import Preparer
    from services.gateway.http.format import Format
    from services.gateway.mesh.catalog import Catalog, Entry
    from services.gateway.metrics import Metrics
    from services.gateway.openai.chunks import Usage
    from services.gateway.settings import GatewaySettings

log = logging.getLogger(__name__)

REQUEST_ID = web.RequestKey("request_id", str)
OUTCOME = web.RequestKey("outcome", str)
"""The code of an error that came after the headers, for the accounts."""
BODY_S_MAX = 30.0
"""Seconds that a client has for sending its request's body."""
_TIMEOUT_MS_MAX = 24 * 3600 * 1000
_BAD_BODY = (web.RequestPayloadError, aiohttp.http_exceptions.HttpProcessingError)


class Routes:
    """Handlers of the HTTP API."""

    def __init__(
        self,
        settings: GatewaySettings,
        tenants: Tenants,
        catalog: Catalog,
        preparer: Preparer,
        generator: Generator,
        metrics: Metrics,
    ) -> None:
        self._tenants = tenants
        self._catalog = catalog
        self._preparer = preparer
        self._generator = generator
        self._metrics = metrics
        self._patience_s = settings.slow_client_s
        self._body_bytes_max = settings.body_bytes_max

    def _tenant(self, request: web.Request) -> Tenant:
        tenant = authenticate(self._tenants, request.headers.get("Authorization"))
        logs.tenant.set(tenant.id)
        return tenant

    async def _body(self, request: web.Request) -> bytes:
        """The request's body. One that is announced as too large is refused unread."""
        if (request.content_length or 0) > self._body_bytes_max:
            raise PayloadTooLargeError(
                f"the body has {request.content_length} bytes, this gateway takes {self._body_bytes_max} "
                "(PENSTOCK_BODY_BYTES_MAX)"
            )
        try:
            async with asyncio.timeout(BODY_S_MAX):
                return await request.read()
        except TimeoutError:
            raise InvalidRequestError(f"the body did not come within {BODY_S_MAX:g} s", code="body_timeout") from None
        except _BAD_BODY as error:
            raise InvalidRequestError(f"the body can't be read: {error}", code="invalid_body") from None

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions"""
        wishes = _wishes(request, self._tenant(request))
        asked = parse("chat", await self._body(request))
        job = await self._preparer.chat(asked, wishes)
        return await self._answer(request, job, ChatFormat(asked, job), stream=asked.stream)

    async def completions(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions"""
        wishes = _wishes(request, self._tenant(request))
        asked = parse("completion", await self._body(request))
        job = await self._preparer.completion(asked, wishes)
        return await self._answer(request, job, CompletionFormat(asked, job), stream=asked.stream)

    async def _answer(self, request: web.Request, job: Job, form: Format, *, stream: bool) -> web.StreamResponse:
        with self._generator.response():
            return await (self._stream if stream else self._whole)(request, job, form)

    async def _whole(self, _: web.Request, job: Job, form: Format) -> web.Response:
        run = Run(job)
        collector = Collector(job.choices)
        usage = await self._generator.run(run, collector)
        self._note_first(job, collector.first_delta_at)
        body = form.whole(collector.choices, usage)
        headers = _headers(run, collector.first_delta_at)
        return web.Response(body=body, content_type="application/json", headers=headers)

    def _note_first(self, job: Job, at: float | None) -> None:
        if at is not None:
            self._metrics.ttft.labels(job.text.meta.model).observe(at - job.arrived)

    async def _stream(self, request: web.Request, job: Job, form: Format) -> web.StreamResponse:
        run = Run(job)
        sse = SseStream(form, job.choices)
        task = asyncio.create_task(self._generator.run(run, sse))
        task.add_done_callback(lambda _: sse.wake.set())
        try:
            await sse.wake.wait()
            if task.done() and not sse.started:
                task.result()  # nothing went out yet, so the error gets its own HTTP status
            response = await self._open(request, run, sse, form)
            await self._deliver(request, response, sse, form, task)
            return response
        finally:
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled():
                task.exception()  # seen: the client left, or was given up, before it could be told

    async def _deliver(
        self,
        request: web.Request,
        response: web.StreamResponse,
        sse: SseStream,
        form: Format,
        task: asyncio.Task[Usage],
    ) -> None:
        """All after the headers. Whatever goes wrong here has no other answer than the end of the stream."""
        try:
            await self._follow(sse, task)
            async with asyncio.timeout(self._patience_s):
                await self._close(request, response, form, task)
        except (CancelledError_, TimeoutError):
            request[OUTCOME] = CancelledError_.code
            self._metrics.slow_clients.inc()
            if request.transport is not None:
                request.transport.abort()
        except ConnectionError:  # the client left
            request[OUTCOME] = CancelledError_.code

    async def _open(self, request: web.Request, run: Run, sse: SseStream, form: Format) -> web.StreamResponse:
        self._note_first(run.job, sse.first_event_at)
        headers = {
            "Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache",
            "X-Accel-Buffering": "no", "x-request-id": request[REQUEST_ID],
            **_headers(run, sse.first_event_at),
        }  # fmt: skip
        response = web.StreamResponse(headers=headers)
        chunked = request.version == aiohttp.HttpVersion11
        if chunked:
            response.enable_chunked_encoding()
        writer = await response.prepare(request)
        if writer is None or request.transport is None:
            raise ConnectionResetError("the client left")
        roles = [form.role(choice) for choice in range(run.job.choices)]
        await response.write(b"".join(event(role) for role in roles if role) or b": ok\n\n")
        sse.open(writer, request.transport, chunked=chunked)
        return response

    async def _follow(self, sse: SseStream, task: asyncio.Task[Usage]) -> None:
        """Until everything is written; meanwhile only a client that is behind needs us."""
        while True:
            sse.wake.clear()
            if sse.error is not None:
                raise sse.error
            if sse.blocked:
                await sse.drain(self._patience_s)
            elif task.done():
                return
            else:
                await sse.wake.wait()

    async def _close(
        self, request: web.Request, response: web.StreamResponse, form: Format, task: asyncio.Task[Usage]
    ) -> None:
        error = _failure(task)
        if error is not None:  # after the first byte an error can only be an event, and no [DONE] follows
            request[OUTCOME] = error.code
            await response.write_eof(event(error_body(error, request[REQUEST_ID])))
            return
        if form.include_usage:
            await response.write(event(form.usage(task.result())))
        await response.write_eof(event(b"[DONE]"))

    async def models(self, request: web.Request) -> web.Response:
        """GET /v1/models"""
        self._tenant(request)
        listed = {"object": "list", "data": [_model(entry) for entry in self._catalog.entries()]}
        return _json(orjson.dumps(listed))

    async def model(self, request: web.Request) -> web.Response:
        """GET /v1/models/{model}"""
        self._tenant(request)
        name = request.match_info["model"]
        for entry in self._catalog.entries():
            if entry.name == name:
                return _json(orjson.dumps(_model(entry)))
        raise NotFoundError(f"the model {name!r} does not exist", param="model", code="model_not_found")

    async def tokenize(self, request: web.Request) -> web.Response:
        """POST /tokenize"""
        self._tenant(request)
        asked = parse("tokenize", await self._body(request))
        text, tokens = await self._preparer.tokenize(asked)
        return _json(tokenize_response(tokens, text.meta.context_length))

    async def detokenize(self, request: web.Request) -> web.Response:
        """POST /detokenize"""
        self._tenant(request)
        asked = parse("detokenize", await self._body(request))
        return _json(detokenize_response(await self._preparer.detokenize(asked)))


def _failure(task: asyncio.Task[Usage]) -> PenstockError | None:
    error = task.exception()
    if error is None or isinstance(error, PenstockError):
        return error
    log.error("generation failed", exc_info=error)
    return PenstockError("an internal error; the gateway's log has the request id")


def _wishes(request: web.Request, tenant: Tenant) -> Wishes:
    arrived = time.monotonic()
    timeout = request.headers.get("x-request-timeout-ms")
    deadline = None
    if timeout is not None:
        if not timeout.isdecimal() or len(timeout) > 9 or not 0 < int(timeout) <= _TIMEOUT_MS_MAX:
            raise InvalidRequestError(
                f"x-request-timeout-ms must be whole milliseconds from 1 to {_TIMEOUT_MS_MAX}, not {timeout[:32]!r}",
                param="x-request-timeout-ms",
            )
        deadline = arrived + int(timeout) / 1000
    session = request.headers.get("x-penstock-session", "")
    return Wishes(tenant, arrived, deadline, request.headers.get("x-penstock-class"), session=session)


def _headers(run: Run, first_at: float | None) -> dict[str, str]:
    queued_ms = f"{run.queued_s * 1000:.1f}"
    timing = f"queue;dur={queued_ms}"
    if first_at is not None:
        timing += f", ttft;dur={(first_at - run.job.arrived) * 1000:.1f}"
    return {
        "x-penstock-cache": run.cache,
        "x-penstock-version": run.job.text.meta.version,
        "x-penstock-queue-ms": queued_ms,
        "x-penstock-matched-tokens": str(run.matched_tokens),
        "Server-Timing": timing,
    }


def _model(entry: Entry) -> dict[str, object]:
    text = entry.text
    if text is None:
        raise NotFoundError(f"the model {entry.name!r} has no card yet", param="model")
    return {
        "id": entry.name, "object": "model", "created": entry.created, "owned_by": "penstock",
        "max_model_len": text.meta.context_length, "ready": bool(entry.workers),
        "root": text.meta.model, "engine": text.meta.engine,
    }  # fmt: skip


def _json(body: bytes) -> web.Response:
    return web.Response(body=body, content_type="application/json")
