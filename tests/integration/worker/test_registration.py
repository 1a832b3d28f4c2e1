"""A worker registers with every router, reports its load, and comes back for ever."""

from __future__ import annotations

import asyncio

import grpc.aio
from penstock.v1 import registry_pb2

from services.common import rpc
from services.common.blocks import chain, root
from services.common.frames import FinishReason
from services.worker.engine.sim_core import KV_BLOCK
from tests.integration.worker.harness import attached, fake_router, running, sim_settings, submit


async def test_the_registration_says_what_the_worker_is() -> None:
    async with (
        fake_router() as (one, first),
        fake_router() as (two, second),
        running(sim_settings(routers=(first, second), name="worker-7", max_sequences=9)) as (worker, address),
    ):
        for router in (one, two):
            said = await router.registration()
            assert (said.worker_id, said.address, list(said.models)) == ("worker-7", address, ["nano"])
            assert (said.incarnation, said.card_hash) == (worker.incarnation, worker.card.hash)
            assert (said.engine, said.max_sequences, said.context_length) == ("sim", 9, 131_072)
            assert (said.kv_blocks, said.kv_block_size) == (524_288 // KV_BLOCK, KV_BLOCK)
            assert (said.report.sequence, said.report.free_kv_blocks) == (1, said.kv_blocks)
            assert not said.leases
            for sequence in (2, 3):  # heartbeats of an idle worker
                report = await router.report()
                assert (report.sequence, report.running, report.waiting) == (sequence, 0, 0)


async def test_reports_tell_leases_steps_and_turns() -> None:
    async with (
        fake_router() as (router, at),
        running(sim_settings(routers=(at,), sim_step_ms=5)) as (worker, address),
        attached(address, worker.incarnation) as gateway,
    ):
        await router.registration()
        await gateway.send(submit(1, choices=2, lease=42, sampling={"max_tokens": 60}))
        report = await router.report()
        while not report.leases_started:
            report = await router.report()
        assert list(report.leases_started) == [42]
        assert report.running + report.waiting == 2
        samples = []
        while not report.leases_ended:
            report = await router.report()
            assert not report.leases_started
            samples += list(report.steps)
        assert list(report.leases_ended) == [42]
        assert (report.running, report.waiting) == (0, 0)
        assert {round(sample.step_ms) for sample in samples} == {5}
        assert {sample.running for sample in samples} == {2}


async def test_a_new_stream_starts_with_the_leases_that_run() -> None:
    async with (
        fake_router() as (router, at),
        running(sim_settings(routers=(at,))) as (worker, address),
        attached(address, worker.incarnation) as gateway,
    ):
        await router.registration()
        await gateway.send(submit(1, lease=5, sampling={"max_tokens": 100_000}), submit(2, lease=6))
        await gateway.until_ended(2)
        router.hang_up.set()
        again = await router.registration()
        assert list(again.leases) == [5]
        assert (again.report.sequence, again.incarnation) == (1, worker.incarnation)
        assert not again.report.leases_started
        assert worker.registrar.links == 1
        await gateway.send(aborts=[1])
        report = await router.report()
        while not report.leases_ended:
            report = await router.report()
        assert list(report.leases_ended) == [5]


async def test_a_router_that_comes_later_or_comes_back_is_found() -> None:
    async with fake_router() as (_, taken):
        port = int(taken.rpartition(":")[2])
    async with running(sim_settings(routers=(taken,))) as (worker, _):
        for _ in range(2):
            async with fake_router(port) as (router, _):
                await router.registration()
                assert worker.registrar.links == 1  # none is left of the attempts that failed


async def test_a_router_without_registry_is_no_reason_to_fail() -> None:
    strange = grpc.aio.server(options=rpc.SERVER_OPTIONS)
    port = strange.add_insecure_port("127.0.0.1:0")
    await strange.start()
    async with (
        fake_router() as (good, at),
        running(sim_settings(routers=(f"127.0.0.1:{port}", at))) as (worker, address),
        attached(address, worker.incarnation) as gateway,
    ):
        await good.registration()
        assert (await gateway.run(submit(1)))[1].reason is FinishReason.LENGTH
    await strange.stop(0)


async def test_draining_is_reported_at_once_and_leaving_ends_the_stream() -> None:
    async with fake_router() as (router, at):
        async with (
            running(sim_settings(routers=(at,))) as (worker, address),
            attached(address, worker.incarnation) as gateway,
        ):
            await router.registration()
            await gateway.send(submit(1, sampling={"max_tokens": 100_000}))
            await gateway.next()
            async with asyncio.TaskGroup() as tasks:
                drain = tasks.create_task(worker.drain())
                report = await router.report()
                while not report.draining:
                    report = await router.report()
                await gateway.send(aborts=[1])
                await drain
        async with asyncio.timeout(20):
            while await router.messages.get() is not None:
                pass


async def test_blocks_begin_with_a_snapshot_and_go_on_with_changes() -> None:
    prompt = list(range(100, 260))
    async with (
        fake_router() as (router, at),
        running(sim_settings(routers=(at,))) as (worker, address),
        attached(address, worker.incarnation) as gateway,
    ):
        assert (await router.registration()).reports_blocks
        first = await router.blocks()
        assert (first.sequence, first.snapshot_begin, first.snapshot_end, first.stored) == (1, True, True, b"")
        await gateway.send(submit(1, prompt, cache_salt="s", sampling={"max_tokens": 2}))
        said = await router.blocks()
        assert (said.sequence, said.snapshot_begin, said.snapshot_end, said.removed) == (2, False, False, b"")
        assert said.stored == chain(root(worker.card.meta.version, salt="s"), prompt)
        router.to_send.put_nowait(registry_pb2.RegistryMessage(resend_blocks=registry_pb2.ResendBlocks()))
        again = await router.blocks()
        assert (again.sequence, again.snapshot_begin, again.snapshot_end) == (3, True, True)
        assert again.stored == said.stored
        router.hang_up.set()
        await router.registration()
        fresh = await router.blocks()
        assert (fresh.sequence, fresh.snapshot_begin, fresh.stored) == (1, True, said.stored)


async def test_blocks_can_be_switched_off() -> None:
    async with (
        fake_router() as (router, at),
        running(sim_settings(routers=(at,), kv_events=False)) as (worker, address),
        attached(address, worker.incarnation) as gateway,
    ):
        assert not (await router.registration()).reports_blocks
        await gateway.send(submit(1, list(range(64)), lease=3))
        while True:
            message = await router.messages.get()
            assert message is not None
            assert not message.HasField("blocks")
            if message.report.leases_ended:
                break
