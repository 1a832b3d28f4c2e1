"""JSON logs, one object a line on stderr, with the request's identities from context variables."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from typing import TYPE_CHECKING

from pythonjsonlogger.json import JsonFormatter

if TYPE_CHECKING:
    from collections.abc import Mapping

request_id: ContextVar[str] = ContextVar("request_id", default="")
tenant: ContextVar[str] = ContextVar("tenant", default="")
trace_id: ContextVar[str] = ContextVar("trace_id", default="")

_CONTEXT: Mapping[str, ContextVar[str]] = {"request_id": request_id, "tenant": tenant, "trace_id": trace_id}


class _ContextFilter(logging.Filter):
    def __init__(self, service: str) -> None:
        super().__init__()
        self._service = service

    def filter(self, record: logging.LogRecord) -> bool:
        record.service = self._service
        for name, variable in _CONTEXT.items():
            value = variable.get()
            if value:
                setattr(record, name, value)
        return True


def configure(service: str, level: str, handler: logging.Handler | None = None) -> None:
    """Send every log record of this process to `handler` (default: stderr) as JSON. Call once, at start."""
    handler = handler or logging.StreamHandler()
    handler.setFormatter(
        JsonFormatter(
            "%(levelname)s %(name)s %(message)s",
            rename_fields={"levelname": "level", "name": "logger"},
            timestamp="time",
        )
    )
    handler.addFilter(_ContextFilter(service))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for noisy in ("asyncio", "grpc._cython.cygrpc", "aiohttp.access"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
