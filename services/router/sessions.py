"""Which worker served a conversation last. A tie-break only, so what is forgotten costs little."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from services.router.requests import Lease, Request
    from services.router.workers import Worker

_SESSIONS_MAX = 65_536


class Sessions:
    """The last 65,536 conversations; a session belongs to its tenant and model."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[str, str, str], Worker] = OrderedDict()

    def worker_of(self, request: Request) -> Worker | None:
        """Of the session's last grant."""
        return self._last.get(_key(request)) if request.session else None

    def granted(self, lease: Lease) -> None:
        """Remember where it went."""
        request = lease.request
        if not request.session:
            return
        key = _key(request)
        self._last[key] = lease.worker
        self._last.move_to_end(key)
        if len(self._last) > _SESSIONS_MAX:
            self._last.popitem(last=False)


def _key(request: Request) -> tuple[str, str, str]:
    return request.tenant, request.model, request.session
