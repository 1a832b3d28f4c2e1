"""The requests of one model that wait for room, oldest first.

Order is by arrival at the mesh (`Request.arrived`), so a request that moved here from another router, or came back from
a worker that refused it, takes its old place. Priority bands and fairness between tenants will replace `_place`.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.router.requests import Request


def _place(request: Request) -> tuple[float, int]:
    return request.arrived, request.order


class WaitingQueue:
    """A sorted list: its few thousand entries move in a microsecond."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self.tokens = 0
        """Prompt and answer tokens of all that wait."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def push(self, request: Request) -> int:
        """Enter it at its place; its position, 1 = first."""
        insort(self._requests, request, key=_place)
        self.tokens += request.tokens
        request.waiting = True
        return self.position(request)

    def remove(self, request: Request) -> None:
        """Take it out, wherever it stands."""
        del self._requests[self.position(request) - 1]
        self.tokens -= request.tokens
        request.waiting = False

    def position(self, request: Request) -> int:
        """Of a waiting request, 1 = first."""
        return bisect_left(self._requests, _place(request), key=_place) + 1

    @property
    def oldest(self) -> tuple[float, int]:
        """Place of the first."""
        return _place(self._requests[0])
