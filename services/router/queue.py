"""The waiting requests of one tenant, earliest deadline first.

A request without a deadline stands as if it had one `horizon_s` after its arrival, and one with a later deadline too.
So a request can be passed by those that came at most `horizon_s` after it: nobody is passed for ever. Requests without
deadlines are in order of arrival at the mesh (`Request.arrived`): one that moved here from another router, or came back
from a worker, takes its old place.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.router.requests import Request


def _place(request: Request) -> tuple[float, float, int]:
    return request.due, request.arrived, request.order


class TenantQueue:
    """A sorted list: its few thousand entries move in a microsecond."""

    def __init__(self) -> None:
        self._requests: list[Request] = []
        self.cost = 0.0
        """Weighted tokens of all that wait, as predicted on entry."""

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def __getitem__(self, at: int) -> Request:
        return self._requests[at]

    def push(self, request: Request) -> None:
        """Enter it at its place."""
        insort(self._requests, request, key=_place)
        self.cost += request.cost

    def remove(self, request: Request) -> None:
        """Take it out, wherever it stands."""
        del self._requests[self.ahead(request)]
        self.cost -= request.cost

    def ahead(self, request: Request) -> int:
        """Requests before a waiting one."""
        return bisect_left(self._requests, _place(request), key=_place)
