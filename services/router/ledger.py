"""Which requests are alive, and which leases they hold. A request leaves it exactly once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.router.requests import Lease, Request

if TYPE_CHECKING:
    from services.router.workers import Worker


class DuplicateRequestError(ValueError):
    """A gateway used a request number again that is still alive: its fault, its stream should end."""


class Ledger:
    """Requests by gateway and number, leases by id.

    Args:
        incarnation: of the router; its low half makes the ids of leases differ from those of other routers.
    """

    def __init__(self, incarnation: int) -> None:
        self.leases: dict[int, Lease] = {}
        self._requests: dict[int, dict[int, Request]] = {}
        self._lease_base = (incarnation & 0xFFFF_FFFF) << 32
        self._lease_count = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return sum(len(requests) for requests in self._requests.values())

    def open(self, request: Request) -> None:
        """Enter a new request.

        Raises:
            DuplicateRequestError: the gateway has a live request of this number.
        """
        mine = self._requests.setdefault(request.gateway, {})
        if request.number in mine:
            raise DuplicateRequestError(f"request {request.number} is still alive; use a new number for each acquire")
        mine[request.number] = request
        self._arrivals += 1
        request.order = self._arrivals

    def close(self, request: Request) -> None:
        """The request is over."""
        mine = self._requests[request.gateway]
        del mine[request.number]
        if not mine:
            del self._requests[request.gateway]

    def find(self, gateway: int, number: int) -> Request | None:
        """A live request."""
        return self._requests.get(gateway, {}).get(number)

    def of_gateway(self, gateway: int) -> list[Request]:
        """All its live requests."""
        return list(self._requests.get(gateway, {}).values())

    def grant(self, request: Request, worker: Worker) -> Lease:
        """A new lease of `request` on `worker`. The worker doesn't count it yet."""
        self._lease_count = self._lease_count % 0xFFFF_FFFF + 1
        hits = request.match.hits() if request.match is not None else {}
        matched = hits.get(worker, 0)
        lease = Lease(
            id=self._lease_base | self._lease_count,
            request=request,
            worker=worker,
            sequences=request.choices,
            blocks=request.blocks(worker.block_size),
            prefill_tokens=request.prompt_tokens - matched,
            matched_tokens=matched,
            likely_blocks=request.likely_blocks(worker.block_size),
        )
        request.lease = self.leases[lease.id] = lease
        return lease

    def take(self, gateway: int, lease_id: int) -> Lease | None:
        """Remove a lease of this gateway; its request stays. None when it holds no such lease."""
        lease = self.leases.get(lease_id)
        if lease is None or lease.request.gateway != gateway:
            return None
        del self.leases[lease_id]
        lease.request.lease = None
        return lease
