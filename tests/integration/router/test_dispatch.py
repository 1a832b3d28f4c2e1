"""The router over real gRPC: leases, queues, and what happens when peers go away."""

from __future__ import annotations

from penstock.v1 import dispatch_pb2

from tests.integration.router.peers import Gateway, Worker, running_router


async def test_a_request_is_granted_the_worker_that_registered() -> None:
    async with running_router() as (_, address), Worker(address, 7), Gateway(address) as gateway:
        await gateway.knows("m", 1)
        await gateway.acquire(1)
        granted = await gateway.next()
        assert isinstance(granted, dispatch_pb2.Granted)
        assert (granted.request, granted.worker, granted.incarnation) == (1, "127.0.0.1:9007", 7)
        assert granted.lease
