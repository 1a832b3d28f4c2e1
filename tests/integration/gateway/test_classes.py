"""Classes from the door to the engine, and responses that give way to a higher class."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from penstock.v1 import dispatch_pb2

from tests.integration.gateway.doors import BATCH_KEY, KEY
from tests.integration.gateway.peers import ids

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Stage

TEXT = "The valve opens."
TOKENS = ids(TEXT)


@pytest.mark.parametrize(
    ("key", "headers", "fields", "expected", "priority"),
    [
        (KEY, {}, {}, dispatch_pb2.INTERACTIVE, 0),
        (KEY, {"x-penstock-class": "standard"}, {}, dispatch_pb2.STANDARD, 1),
        (KEY, {"x-penstock-class": "batch"}, {"service_tier": "priority"}, dispatch_pb2.BATCH, 2),
        (KEY, {}, {"service_tier": "flex"}, dispatch_pb2.BATCH, 2),
        (BATCH_KEY, {"x-penstock-class": "interactive"}, {}, dispatch_pb2.BATCH, 2),
        (BATCH_KEY, {}, {}, dispatch_pb2.BATCH, 2),
    ],
    ids=["none", "header", "header before tier", "tier", "over the tenant's maximum", "default of such a tenant"],
)
async def test_the_class_goes_to_the_router_and_as_a_priority_to_the_engine(
    stage: Stage, key: str, headers: dict[str, str], fields: dict[str, Any], expected: int, priority: int
) -> None:
    async with stage() as scene:
        answer = asyncio.create_task(scene.door.chat(key=key, headers=headers, **fields))
        attached = await scene.worker.submit()
        assert attached.submit.priority == priority
        assert (await scene.router.acquires.get()).priority_class == expected
        await attached.text(TEXT)
        assert (await answer).status == 200


async def test_a_response_without_a_token_gives_way_and_starts_again_later(stage: Stage) -> None:
    async with stage() as scene, scene.door.stream() as stream:
        first = await scene.worker.submit()
        scene.router.manual = True
        scene.router.preempt(first.submit.lease)
        assert await scene.router.yields.get() == first.submit.lease
        assert await scene.worker.aborts.get() == first.submit.sequence
        acquire = await scene.router.acquires.get()
        await first.send(TOKENS)  # were on their way: nobody may see them
        scene.router.grant(acquire.request, scene.worker)
        again = await scene.worker.submit()
        assert (again.submit.attempt, first.submit.attempt) == (1, 0)
        assert again.submit.first_index == 0
        await again.text(TEXT)
        answer = await stream.rest()
        release = await scene.router.releases.get()
    assert (answer.text(), answer.done) == (TEXT, True)
    assert (release.lease, release.outcome) == (again.submit.lease, dispatch_pb2.FINISHED)
    assert scene.router.acquires.empty, "it kept its number, and so its place"
    assert scene.router.releases.empty


async def test_a_response_with_a_token_keeps_its_place(stage: Stage) -> None:
    async with stage() as scene, scene.door.stream() as stream:
        attached = await scene.worker.submit()
        await attached.send(TOKENS[:3])
        await stream.text()
        scene.router.preempt(attached.submit.lease)
        assert await scene.router.refusals.get() == attached.submit.lease
        await attached.text(TEXT[len("The") :])
        answer = await stream.rest()
    assert answer.done
    assert scene.router.yields.empty


async def test_a_preemption_on_the_heels_of_its_grant_is_no_lost_place(stage: Stage) -> None:
    async with stage() as scene:
        scene.router.manual = True
        answer = asyncio.create_task(scene.door.chat())
        acquire = await scene.router.acquires.get()
        lease = scene.router.grant(acquire.request, scene.worker)
        scene.router.preempt(lease)
        assert await scene.router.yields.get() == lease
        scene.router.grant(acquire.request, scene.worker)
        attached = await scene.worker.submit()
        while attached.submit.lease == lease:
            attached = await scene.worker.submit()
        await attached.text(TEXT)
        assert (await answer).body["choices"][0]["message"]["content"] == TEXT


async def test_a_lease_that_nobody_holds_is_refused(stage: Stage) -> None:
    async with stage() as scene:
        answer = asyncio.create_task(scene.door.chat())
        attached = await scene.worker.submit()
        await attached.text(TEXT)
        assert (await answer).status == 200
        await scene.router.releases.get()
        scene.router.preempt(attached.submit.lease)
        assert await scene.router.refusals.get() == attached.submit.lease
