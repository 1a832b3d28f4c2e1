"""The HTTP door: aiohttp for parsing and connections, one middleware for identity, errors and accounts."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import TYPE_CHECKING

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from services.common import logs
from services.common.errors import (
    CancelledError_,
    InvalidRequestError,
    MethodNotAllowedError,
    NotFoundError,
    PayloadTooLargeError,
    PenstockError,
    status_of,
)
from services.common.ids import request_id_of, trace_id_of
from services.gateway.http.routes import OUTCOME, REQUEST_ID, Routes
from services.gateway.openai.errors import error_body, error_headers

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from services.common.tenants import Tenants
    from services.gateway.generation.generator import Generator
    from services.gateway.generation.prepare import Preparer
    from services.gateway.mesh.catalog import Catalog
    from services.gateway.metrics import Metrics
    from services.gateway.settings import GatewaySettings

    Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

log = logging.getLogger(__name__)

_LINGER_S = 3.0
"""How long what a client still sends is read and thrown away after an early answer, so that it sees the answer."""
_CLIENT_GONE = 499


class _WithoutBadPeers(logging.Filter):
    """What a client sends that is not HTTP is no error of ours, and not worth a traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if not isinstance(error, web.RequestPayloadError | HttpProcessingError):
            return True
        log.info("bad HTTP", extra={"reason": str(error)[:200]})
        return False


_server_log = logging.getLogger("aiohttp.server")
_server_log.addFilter(_WithoutBadPeers())


class HttpServer:
    """Listens, routes, and answers errors in OpenAI's shape."""

    def __init__(
        self,
        settings: GatewaySettings,
        tenants: Tenants,
        catalog: Catalog,
        preparer: Preparer,
        generator: Generator,
        metrics: Metrics,
    ) -> None:
        self._settings = settings
        self._catalog = catalog
        self._generator = generator
        self._metrics = metrics
        routes = Routes(settings, tenants, catalog, preparer, generator, metrics)
        app = web.Application(client_max_size=settings.body_bytes_max, middlewares=[self._middleware])
        app.router.add_post("/v1/chat/completions", routes.chat)
        app.router.add_post("/v1/completions", routes.completions)
        app.router.add_get("/v1/models", routes.models)
        app.router.add_get("/v1/models/{model:.+}", routes.model)
        app.router.add_post("/tokenize", routes.tokenize)
        app.router.add_post("/detokenize", routes.detokenize)
        app.router.add_get("/health/live", self._live)
        app.router.add_get("/health/ready", self._ready)
        app.router.add_get("/metrics", self._metrics_page)
        app.on_response_prepare.append(_sign)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, keepalive_timeout=75, shutdown_timeout=0.5,
            lingering_time=_LINGER_S, logger=_server_log,
        )  # fmt: skip

    async def start(self) -> str:
        """Listen; the address.

        Raises:
            OSError: the port is taken.
        """
        await self._runner.setup()
        sock = socket.create_server((self._settings.host, self._settings.http_port), backlog=1024)
        sock.setblocking(False)
        await web.SockSite(self._runner, sock).start()
        host, port = sock.getsockname()[:2]
        return f"{host}:{port}"

    async def stop(self) -> None:
        """Close every connection."""
        await self._runner.cleanup()

    @web.middleware
    async def _middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        request_id = request_id_of(request.headers.get("x-request-id"))
        request[REQUEST_ID] = request_id
        logs.request_id.set(request_id)
        logs.trace_id.set(trace_id_of(request.headers.get("traceparent")))
        logs.tenant.set("")
        route = request.match_info.route.resource
        name = route.canonical if route is not None else "unknown"
        allow = None
        try:
            response = await handler(request)
        except web.HTTPException as error:
            answer, allow = _aiohttp_error(request, error), error.headers.get("Allow")
        except PenstockError as error:
            answer = error
        except asyncio.CancelledError:
            self._metrics.requests.labels(name, CancelledError_.code).inc()
            raise
        except ConnectionError:  # the client left: nobody will see the answer
            self._metrics.requests.labels(name, CancelledError_.code).inc()
            return web.Response(status=_CLIENT_GONE)
        except Exception:
            log.exception("request failed")
            answer = PenstockError("an internal error; the gateway's log has the request id")
        else:
            self._metrics.requests.labels(name, request.get(OUTCOME, "ok")).inc()
            return response
        self._metrics.requests.labels(name, answer.code).inc()
        headers = error_headers(answer, request_id)
        if allow is not None:
            headers["Allow"] = allow
        response = web.Response(
            status=status_of(answer).http, body=error_body(answer, request_id), headers=headers,
            content_type="application/json",
        )  # fmt: skip
        if isinstance(answer, PayloadTooLargeError):
            response.force_close()
        return response

    async def _live(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"})

    async def _ready(self, _: web.Request) -> web.Response:
        checks = {"router": self._generator.ready, "model": self._catalog.ready}
        ready = all(checks.values())
        return web.json_response(
            {"status": "ok" if ready else "not ready", "checks": checks}, status=200 if ready else 503
        )

    async def _metrics_page(self, _: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _sign(request: web.Request, response: web.StreamResponse) -> None:
    response.headers["Server"] = "penstock"
    response.headers.setdefault("x-request-id", request.get(REQUEST_ID, ""))


def _aiohttp_error(request: web.Request, error: web.HTTPException) -> PenstockError:
    if isinstance(error, web.HTTPNotFound):
        return NotFoundError(f"there is no {request.path}; the API starts at /v1", code="unknown_path")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return MethodNotAllowedError(f"{request.path} takes {allowed}, not {request.method}")
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return PayloadTooLargeError("the request body is over this gateway's limit (PENSTOCK_BODY_BYTES_MAX)")
    return InvalidRequestError(error.reason or "bad request")
