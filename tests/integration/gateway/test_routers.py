"""The way to the routers: standbys, refusals, reconnects."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from penstock.v1 import dispatch_pb2

from services.gateway.mesh.catalog import Catalog
from services.gateway.mesh.rendezvous import choose
from services.gateway.text.models import TextModel
from tests.integration.gateway.doors import running_gateway
from tests.integration.gateway.peers import MODEL, FakeRouter, card, ids, running_peers

if TYPE_CHECKING:
    from pathlib import Path

    from services.common.card import ModelCard
    from tests.integration.gateway.conftest import Scene, Stage

TEXT = "The valve opens"
TOKENS = ids(TEXT)


def owner_first(scene: Scene) -> list[FakeRouter]:
    """The router that owns the model, then the standby."""
    owner = choose(MODEL, [router.address for router in scene.routers])
    return sorted(scene.routers, key=lambda router: router.address != owner)


async def both_live(scene: Scene) -> None:
    """Until the gateway is connected to every router."""
    async with asyncio.timeout(20):
        while (pool := scene.door.gateway._generator._routers).live < len(scene.routers):
            await pool._change.wait()


async def test_one_router_owns_a_model_and_the_other_only_listens(stage: Stage) -> None:
    async with stage(routers=2) as scene:
        await both_live(scene)
        owner, standby = owner_first(scene)
        for _ in range(3):
            answer = asyncio.create_task(scene.door.chat())
            await (await scene.worker.submit()).text("ok")
            assert (await answer).status == 200
            await owner.acquires.get()
        assert standby.acquires.empty


async def test_a_waiting_request_moves_to_the_standby_and_keeps_its_place(stage: Stage) -> None:
    async with stage(routers=2) as scene:
        await both_live(scene)
        owner, standby = owner_first(scene)
        owner.manual = True
        answer = asyncio.create_task(scene.door.chat())
        await owner.acquires.get()
        await owner.stop()
        ask = await standby.acquires.get()
        assert ask.attempt == 0
        await (await scene.worker.submit()).text("ok")
        assert (await answer).status == 200


async def test_a_running_stream_does_not_notice_that_its_router_died(stage: Stage) -> None:
    async with stage(routers=2) as scene:
        await both_live(scene)
        owner, _ = owner_first(scene)
        async with scene.door.stream() as stream:
            attached = await scene.worker.submit()
            await attached.send(TOKENS[:4])
            await stream.text()
            await owner.stop()
            await attached.text(TEXT[len("".join(e.text for e in stream.events)) :])
            answer = await stream.rest()
        assert (answer.text(), answer.done) == (TEXT, True)


async def test_a_draining_router_sends_requests_to_the_next(stage: Stage) -> None:
    async with stage(routers=2) as scene:
        await both_live(scene)
        owner, standby = owner_first(scene)
        owner.manual = True
        answer = asyncio.create_task(scene.door.chat())
        owner.reject((await owner.acquires.get()).request, dispatch_pb2.DRAINING)
        await standby.acquires.get()
        await (await scene.worker.submit()).text("ok")
        assert (await answer).status == 200


async def test_the_only_router_may_drain_and_come_back(stage: Stage) -> None:
    async with stage(router_wait_s=15.0) as scene:
        scene.router.manual = True
        answer = asyncio.create_task(scene.door.chat())
        scene.router.reject((await scene.router.acquires.get()).request, dispatch_pb2.DRAINING)
        scene.router.manual = False
        scene.router.cut()
        await scene.router.acquires.get()
        await (await scene.worker.submit()).text("ok")
        assert (await answer).status == 200


async def test_a_bounce_after_a_reconnect_asks_anew(stage: Stage) -> None:
    async with stage(router_wait_s=15.0) as scene:
        answer = asyncio.create_task(scene.door.chat())
        attached = await scene.worker.submit()
        await scene.router.acquires.get()
        scene.router.cut()
        await both_live_again(scene)
        await attached.refuse()
        await scene.router.acquires.get()
        await (await scene.worker.submit()).text("ok")
        assert (await answer).status == 200
        assert scene.router.bounces.empty


async def both_live_again(scene: Scene) -> None:
    """Until the cut link was noticed and is back."""
    pool = scene.door.gateway._generator._routers
    link = next(iter(pool._links.values()))
    async with asyncio.timeout(20):
        while link._stream < 2 or not link.live:
            await pool._change.wait()


async def test_a_router_that_reads_nothing_is_dialled_again(stage: Stage) -> None:
    async with stage(router_wait_s=15.0) as scene:
        link = next(iter(scene.door.gateway._generator._routers._links.values()))
        link._outbox._limit = 0
        answer = asyncio.create_task(scene.door.chat())
        await (await scene.worker.submit()).text("ok")
        assert (await answer).status == 200
        assert link._stream == 2


async def test_no_router_at_all_is_503_with_a_time_to_retry(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, ["127.0.0.1:1"], wait=False, router_wait_s=0.1) as door:
        await door.until_health(503)
        answer = await door.get("/health/ready")
        assert answer.body["checks"] == {"router": False, "model": False}
        assert (await door.get("/health/live")).status == 200
        assert (await door.get("/v1/models")).body["data"] == []
        assert (await door.chat()).status == 404


async def test_losing_the_only_router_is_503_until_it_is_back(stage: Stage) -> None:
    async with stage(router_wait_s=0.1) as scene:
        port = int(scene.router.address.rpartition(":")[2])
        await scene.router.stop()
        await scene.door.until_health(503)
        answer = await scene.door.chat()
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert answer.error["code"] == "service_unavailable"
        assert not (await scene.door.get("/v1/models")).body["data"][0]["ready"]
        back = FakeRouter(scene.workers)
        await back.start(port)
        await scene.door.until_health(200)
        asked = asyncio.create_task(scene.door.chat())
        await (await scene.worker.submit()).text("ok")
        assert (await asked).status == 200
        await back.stop()


@pytest.mark.parametrize(
    ("reason", "status", "code", "param", "retry"),
    [
        (dispatch_pb2.QUEUE_FULL, 429, "rate_limit_exceeded", None, "3"),
        (dispatch_pb2.BOUNCED_TOO_OFTEN, 429, "rate_limit_exceeded", None, "3"),
        (dispatch_pb2.NO_WORKERS, 503, "service_unavailable", None, "3"),
        (dispatch_pb2.DEADLINE, 504, "deadline_exceeded", None, "3"),
        (dispatch_pb2.UNKNOWN_MODEL, 404, "model_not_found", "model", None),
        (dispatch_pb2.TOO_LARGE, 400, "context_length_exceeded", "max_tokens", None),
        (99, 500, "internal_error", None, None),
    ],
)
@pytest.mark.parametrize("streamed", [True, False])
async def test_refusals(
    stage: Stage, reason: int, status: int, code: str, param: str | None, retry: str | None, streamed: bool
) -> None:
    async with stage() as scene:
        scene.router.manual = True
        answer = asyncio.create_task(scene.door.chat(stream=streamed))
        scene.router.reject(
            (await scene.router.acquires.get()).request, dispatch_pb2.RejectReason.ValueType(reason), 2300
        )
        refused = await answer
        assert (refused.status, refused.error["code"], refused.error["param"]) == (status, code, param)
        assert refused.headers.get("Retry-After") == retry


async def test_overflow_is_refused_clearly(stage: Stage) -> None:
    async with stage() as scene:
        scene.router.manual = True
        answer = asyncio.create_task(scene.door.chat())
        request = (await scene.router.acquires.get()).request
        scene.router.send(overflow=dispatch_pb2.Overflow(request=request, queue="overflow.m.batch"))
        assert ((await answer).status, "overflow.m.batch" in (await answer).error["message"]) == (503, True)


async def test_what_a_request_asks_for(stage: Stage) -> None:
    async with stage() as scene:
        scene.router.manual = True
        headers = {"x-penstock-class": "batch", "x-request-timeout-ms": "60000"}
        answer = asyncio.create_task(scene.door.chat("hello", headers=headers, max_tokens=7, n=2))
        ask = await scene.router.acquires.get()
        answer.cancel()
        assert (ask.model, ask.max_tokens, ask.choices, ask.tenant) == (MODEL, 7, 2, "dev")
        assert ask.priority_class == dispatch_pb2.BATCH
        assert ask.prompt_tokens == len(ids("user: hello\n"))
        assert 0 < ask.deadline_ms <= 60_000
        assert ask.response_id.startswith("chatcmpl-")


async def test_models_of_two_routers_are_one_list(tmp_path: Path) -> None:
    async with running_peers(workers=2, routers=2) as (routers, workers):
        routers[0].workers, routers[1].workers = [workers[0]], []
        async with running_gateway(tmp_path, [router.address for router in routers]) as door:
            body = (await door.get("/v1/models")).body
            assert [(model["id"], model["ready"]) for model in body["data"]] == [(MODEL, True)]
            assert (await door.get(f"/v1/models/{MODEL}")).body["max_model_len"] == 4096
            assert (await door.get("/v1/models/none")).error["code"] == "model_not_found"


async def test_a_card_that_can_not_be_had_yet(tmp_path: Path) -> None:
    async with running_peers() as (routers, workers):
        await workers[0].stop()  # the router names a worker that nobody can reach
        async with running_gateway(tmp_path, [routers[0].address], wait=False) as door:
            async with asyncio.timeout(20):
                while (answer := await door.chat(headers={"x-request-timeout-ms": "200"})).status == 404:
                    pass  # the router has not been heard yet
            assert (answer.status, answer.error["code"]) == (504, "deadline_exceeded")
            assert (await door.get("/health/ready")).body["checks"] == {"router": True, "model": False}


async def test_a_worker_with_a_card_that_nobody_can_read_does_not_end_the_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_peers() as (routers, workers):
        good = TextModel.from_card

        def broken(card: ModelCard) -> TextModel:
            monkeypatch.setattr(TextModel, "from_card", good)
            raise KeyError("nobody foresaw this")

        monkeypatch.setattr(TextModel, "from_card", broken)
        async with running_gateway(tmp_path, [routers[0].address]) as door:  # ready after the second attempt
            answer = asyncio.create_task(door.chat())
            await (await workers[0].submit()).text("ok")
            assert (await answer).status == 200


async def test_a_model_whose_first_worker_is_still_to_come_is_waited_for() -> None:
    async with running_peers(routers=0) as (_, workers), asyncio.TaskGroup() as tasks:
        catalog = Catalog(lambda: None, no_worker_wait_s=30)
        catalog.start(tasks)
        catalog.on_update("router", dispatch_pb2.ModelUpdate(model=MODEL))
        asked = tasks.create_task(catalog.get(MODEL))
        await asyncio.sleep(0)  # it asks, and waits, before there is a worker
        assert not asked.done()
        update = dispatch_pb2.ModelUpdate(model=MODEL, card_hash=card().hash, workers=[workers[0].address])
        catalog.on_update("router", update)
        assert (await asked).card_hash == card().hash


async def test_a_model_without_workers_is_503_after_a_while(tmp_path: Path) -> None:
    async with running_peers() as (routers, _):
        routers[0].workers = []
        async with running_gateway(tmp_path, [routers[0].address], wait=False, no_worker_wait_s=0.05) as door:
            async with asyncio.timeout(20):
                while (answer := await door.chat()).status == 404:
                    pass  # the router has not been heard yet
            assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
