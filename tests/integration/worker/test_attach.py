"""The Attach contract over real gRPC, on the simulator."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from penstock.v1 import engine_pb2

from services.common import rpc
from services.common.card import ModelCard
from services.common.frames import ATTACH_METHOD, FinishReason
from tests.integration.worker.harness import attached, fetch_card, running, sim_settings, submit

Call = grpc.aio.StreamStreamCall[Any, bytes]


async def test_one_frame_per_step_for_each_gateway() -> None:
    async with (
        running(sim_settings()) as (worker, address),
        attached(address, worker.incarnation) as one,
        attached(address, worker.incarnation) as two,
    ):
        await one.send(*[submit(handle, [handle] * 5, sampling={"max_tokens": 30}) for handle in range(20)])
        await two.send(*[submit(handle, [handle] * 5, sampling={"max_tokens": 30}) for handle in range(10)])
        await one.until_ended(*range(20))
        await two.until_ended(*range(10))
    for gateway, sequences in ((one, 20), (two, 10)):
        steps = [frame.step for frame in gateway.frames]
        assert steps == sorted(set(steps))
        assert [len(frame.sequence) for frame in gateway.frames] == [sequences] * 30
        assert {frame.incarnation for frame in gateway.frames} == {worker.incarnation}
        assert all(ended.reason is FinishReason.LENGTH for ended in gateway.ended.values())
        assert all(ended.completion == 30 for ended in gateway.ended.values())
    assert one.tokens[3] == two.tokens[3]
    assert one.tokens[3] != one.tokens[4]


async def test_a_moved_stream_goes_on_identically_on_another_worker() -> None:
    async with running(sim_settings()) as (first, address), attached(address, first.incarnation) as gateway:
        whole, _ = await gateway.run(submit(1, [9, 8, 7], sampling={"max_tokens": 40, "seed": 3}))
    async with running(sim_settings()) as (second, address), attached(address, second.incarnation) as gateway:
        moved = submit(1, [9, 8, 7, *whole[:15]], prompt_tokens=3, first_index=15, attempt=2,
                       sampling={"max_tokens": 25, "seed": 3})  # fmt: skip
        await gateway.send(moved)
        frame = await gateway.read()
        assert frame.first_index == [15]
        rest = list(frame.tokens)
        while not frame.finish_sequence:
            frame = await gateway.read()
            rest += frame.tokens
    assert whole[:15] + rest == whole
    assert (frame.finish_completion_tokens, frame.finish_prompt_tokens) == ([40], [3])


async def test_choices_have_their_own_handles_and_answers() -> None:
    async with running(sim_settings()) as (worker, address), attached(address, worker.incarnation) as gateway:
        await gateway.send(submit(10, choices=3))
        await gateway.until_ended(10, 11, 12)
        await gateway.run(submit(20, first_choice=2))
    assert len({tuple(gateway.tokens[handle]) for handle in (10, 11, 12)}) == 3
    assert gateway.tokens[20] == gateway.tokens[12]


async def test_over_the_cap_is_refused_at_once_and_aborts_make_room() -> None:
    async with (
        running(sim_settings(max_sequences=2, sim_step_ms=60_000)) as (worker, address),
        attached(address, worker.incarnation) as gateway,
    ):
        await gateway.send(submit(1), submit(2), submit(3))
        await gateway.until_ended(3)  # the first step would end in a minute
        assert gateway.ended[3].reason is FinishReason.REFUSED
        await gateway.send(aborts=[1, 2])
        await gateway.until_ended(1, 2)
        assert [gateway.ended[handle].reason for handle in (1, 2)] == [FinishReason.ABORTED] * 2
        await gateway.send(submit(4), submit(5), submit(6))
        await gateway.until_ended(6)
        assert len(worker.hub) == 2


async def test_an_abort_says_what_was_used() -> None:
    prompt = list(range(40))
    async with running(sim_settings()) as (worker, address), attached(address, worker.incarnation) as gateway:
        await gateway.run(submit(1, prompt))
        await gateway.send(submit(2, prompt, sampling={"max_tokens": 100_000}))
        while len(gateway.tokens.get(2, ())) < 5:
            await gateway.next()
        await gateway.send(aborts=[2])
        await gateway.until_ended(2)
        ended = gateway.ended[2]
        assert (ended.reason, ended.prompt, ended.cached) == (FinishReason.ABORTED, 40, 32)
        assert ended.completion == len(gateway.tokens[2])
        assert len(worker.hub) == 0


async def test_a_gateway_that_leaves_is_forgotten() -> None:
    async with running(sim_settings()) as (worker, address), attached(address, worker.incarnation) as stays:
        async with attached(address, worker.incarnation) as leaves:
            await leaves.send(*[submit(handle, sampling={"max_tokens": 100_000}) for handle in range(5)])
            await leaves.next()
            assert len(worker.hub) == 5
        await stays.send(submit(1, sampling={"max_tokens": 100_000}))
        while len(worker.hub) > 1:
            await stays.next()
        await stays.send(aborts=[1])
        await stays.until_ended(1)


async def test_a_half_closed_stream_ends_cleanly() -> None:
    async with running(sim_settings()) as (worker, address), attached(address, worker.incarnation) as gateway:
        await gateway.run(submit(1))
        await gateway.call.done_writing()
        assert await gateway.call.read() is grpc.aio.EOF
        assert await gateway.call.code() is grpc.StatusCode.OK


async def test_a_half_closed_stream_still_gets_what_was_queued() -> None:
    async with (
        running(sim_settings(sim_step_ms=60_000)) as (worker, address),
        attached(address, worker.incarnation) as gateway,
    ):
        await gateway.send(submit(1), submit(2, sampling={"max_tokens": 0}))
        await gateway.call.done_writing()
        await gateway.until_ended(2)
        assert await gateway.call.read() is grpc.aio.EOF
        assert len(worker.hub) == 0


async def test_a_deadline_ends_the_sequence() -> None:
    async with running(sim_settings()) as (worker, address), attached(address, worker.incarnation) as gateway:
        _, ended = await gateway.run(submit(1, deadline_ms=30, sampling={"max_tokens": 100_000}))
        assert ended.reason is FinishReason.DEADLINE
        assert ended.completion == len(gateway.tokens.get(1, ()))
        assert len(worker.hub) == 0


async def test_logprobs_arrive_beside_their_tokens() -> None:
    async with running(sim_settings()) as (worker, address), attached(address, worker.incarnation) as gateway:
        await gateway.send(submit(1), submit(2, sampling={"logprobs": 2}))
        await gateway.until_ended(1, 2)
    for frame in gateway.frames:
        (position,) = frame.logprob_token
        assert frame.sequence[position] == 2
        assert frame.top_count == [2]
        assert frame.top_tokens[0] == frame.tokens[position]
        assert frame.top_logprobs[0] == frame.logprob[0]


@pytest.mark.parametrize(
    ("wanted", "named"),
    [
        (submit(1, prompt=b"\x01garbage"), "prompt:"),
        (submit(1, ()), "prompt:"),
        (submit(1, [2_048]), "prompt:"),
        (submit(1, choices=0), "choices:"),
        (submit(1, sampling={"max_tokens": 131_072}), "sampling.max_tokens:"),
        (submit(1, sampling={"max_tokens": 0}), "sampling.max_tokens:"),
        (submit(1, sampling={"json_object": True}), "sampling.json_object:"),
        (submit(1, lora="nobody"), "lora:"),
    ],
)
async def test_a_bad_submit_is_invalid_and_harms_nobody(wanted: engine_pb2.Submit, named: str) -> None:
    async with running(sim_settings()) as (worker, address), attached(address, worker.incarnation) as gateway:
        await gateway.send(submit(7), wanted)
        await gateway.until_ended(1, 7)
        assert gateway.ended[1].reason is FinishReason.INVALID
        assert gateway.ended[1].detail.startswith(named)
        assert gateway.ended[7].reason is FinishReason.LENGTH


async def test_a_used_handle_is_invalid() -> None:
    async with running(sim_settings()) as (worker, address), attached(address, worker.incarnation) as gateway:
        await gateway.run(submit(1))
        await gateway.send(submit(1, attempt=2))
        frame = await gateway.read()
        assert (frame.finish_sequence, frame.finish_reason) == ([1], [FinishReason.INVALID])
        assert frame.finish_detail[0].startswith("sequence:")


@pytest.mark.parametrize(
    ("first", "said"),
    [
        (engine_pb2.AttachBatch(submits=[submit(1)]), "hello"),
        (engine_pb2.AttachBatch(hello=engine_pb2.AttachHello(gateway_id="g", incarnation=12)), "incarnation"),
        (None, "hello"),
    ],
)
async def test_a_stream_needs_a_hello_for_this_incarnation(first: engine_pb2.AttachBatch | None, said: str) -> None:
    async with running(sim_settings()) as (_, address), rpc.channel(address) as channel:
        call: Call = channel.stream_stream(ATTACH_METHOD, request_serializer=engine_pb2.AttachBatch.SerializeToString)()
        if first is not None:
            await call.write(first)
        else:
            await call.done_writing()
        assert await call.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert said in await call.details()


async def test_a_second_hello_breaks_the_stream() -> None:
    async with running(sim_settings()) as (worker, address), attached(address, worker.incarnation) as gateway:
        await gateway.call.write(engine_pb2.AttachBatch(hello=engine_pb2.AttachHello(incarnation=worker.incarnation)))
        assert await gateway.call.code() is grpc.StatusCode.FAILED_PRECONDITION


async def test_a_slow_reader_is_disconnected_and_nobody_waits_for_it() -> None:
    """It reads nothing; another gateway's stream goes on and its memory and sequences are given back."""
    small = (("grpc.http2.lookahead_bytes", 16_384), ("grpc.http2.bdp_probe", 0))
    settings = sim_settings(gateway_lag_bytes=100_000, gateway_lag_s=1_000)
    async with (
        running(settings) as (worker, address),
        attached(address, worker.incarnation) as reader,
        attached(address, worker.incarnation, options=small) as sleeper,
    ):
        heavy = {"max_tokens": 100_000, "logprobs": 20}
        await sleeper.send(*[submit(handle, [handle], sampling=heavy) for handle in range(50)])
        await reader.send(submit(1, sampling={"max_tokens": 100_000}))
        await reader.next()
        while len(worker.hub) == 1:
            await reader.next()  # until the sleeper's sequences are there
        while len(worker.hub) > 1:
            await reader.next()  # until they are gone
        assert 1 in reader.tokens
        with pytest.raises(EOFError, match="RESOURCE_EXHAUSTED"):
            while True:
                await sleeper.next()


async def test_a_frame_unread_for_too_long_disconnects_without_a_step() -> None:
    """The simulator makes no more steps: only the clock can tell that the gateway sleeps."""
    small = (("grpc.http2.lookahead_bytes", 16_384), ("grpc.http2.bdp_probe", 0))
    settings = sim_settings(gateway_lag_s=0.3)
    async with (
        running(settings) as (worker, address),
        attached(address, worker.incarnation, options=small) as sleeper,
        attached(address, worker.incarnation) as reader,
    ):
        bulky = {"max_tokens": 40, "logprobs": 20}
        await sleeper.send(*[submit(handle, [handle], sampling=bulky) for handle in range(50)])
        async with asyncio.timeout(20):
            await worker.attach.left.wait()
        assert worker.attach.gateways == 1
        assert (await reader.run(submit(1)))[1].reason is FinishReason.LENGTH


async def test_a_draining_worker_ends_what_it_has_and_refuses_more() -> None:
    async with running(sim_settings()) as (worker, address), attached(address, worker.incarnation) as gateway:
        await gateway.send(submit(1, sampling={"max_tokens": 200}))
        await gateway.next()
        async with asyncio.TaskGroup() as tasks:
            drain = tasks.create_task(worker.drain())
            while not worker.hub.draining:
                await gateway.next()
            async with rpc.channel(address) as channel:
                health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
            await gateway.send(submit(2))
            await gateway.until_ended(1, 2)
            assert await gateway.call.read() is grpc.aio.EOF  # drained: the worker says goodbye
            assert await gateway.call.code() is grpc.StatusCode.OK
            await drain
        assert gateway.ended[2].reason is FinishReason.REFUSED
        assert (gateway.ended[1].reason, gateway.ended[1].completion) == (FinishReason.LENGTH, 200)


async def test_health_and_card() -> None:
    async with running(sim_settings()) as (worker, address):
        async with rpc.channel(address) as channel:
            health = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
        assert health.status == health_pb2.HealthCheckResponse.SERVING
        card = ModelCard.parse(await fetch_card(address, worker.card.hash), worker.card.hash)
        assert (card.meta.model, card.meta.engine, card.meta.vocab_size) == ("nano", "sim", 2_048)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await fetch_card(address, "0" * 32)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_garbage_on_the_stream_ends_the_stream_only() -> None:
    async with running(sim_settings()) as (worker, address), attached(address, worker.incarnation) as gateway:
        async with rpc.channel(address) as channel:
            call: Call = channel.stream_stream(ATTACH_METHOD)()
            await call.write(os.urandom(200))
            assert await call.code() is not grpc.StatusCode.OK
        assert (await gateway.run(submit(1)))[1].reason is FinishReason.LENGTH
