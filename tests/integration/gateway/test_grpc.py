"""The gRPC door: the same answers and refusals as HTTP's, in its own clothes."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from penstock.v1 import dispatch_pb2
from penstock.v1 import inference_pb2 as pb

from services.common.frames import FinishReason
from tests.integration.gateway.doors import KEY
from tests.integration.gateway.peers import ids

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Scene, Stage
    from tests.integration.gateway.doors import Door

METADATA = (("authorization", f"Bearer {KEY}"),)
HI = [pb.ChatMessage(role="user", content="hi")]
TEXT = "The valve opens, 🌍."


def chat(**fields: Any) -> pb.ChatRequest:
    return pb.ChatRequest(**{"model": "m", "messages": HI, **fields})


async def events(call: Any) -> list[pb.GenerateEvent]:
    """All of a stream."""
    return [event async for event in call]


def kinds(found: list[pb.GenerateEvent]) -> list[str | None]:
    return [event.WhichOneof("event") for event in found]


def text_of(found: list[pb.GenerateEvent], choice: int = 0) -> str:
    return "".join(e.delta.text for e in found if e.HasField("delta") and e.delta.choice == choice)


class Refusal:
    """A failed call with its details."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        self.code, self.details = error.code(), error.details()
        status = status_pb2.Status()
        for key, value in error.trailing_metadata() or ():
            if key == "grpc-status-details-bin":
                status.ParseFromString(value)
        self.reason, self.field, self.retry_s = "", "", 0.0
        for detail in status.details:
            if detail.Is(error_details_pb2.ErrorInfo.DESCRIPTOR):
                info = error_details_pb2.ErrorInfo()
                detail.Unpack(info)
                self.reason = info.reason
            elif detail.Is(error_details_pb2.BadRequest.DESCRIPTOR):
                bad = error_details_pb2.BadRequest()
                detail.Unpack(bad)
                self.field = bad.field_violations[0].field
            elif detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR):
                retry = error_details_pb2.RetryInfo()
                detail.Unpack(retry)
                self.retry_s = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9


async def refusal(call: Any) -> Refusal:
    """How a call fails."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await events(call)
    return Refusal(caught.value)


async def test_a_chat(stage: Stage) -> None:
    async with stage() as scene:
        call = scene.door.inference.Chat(chat(sampling=pb.Sampling(max_tokens=50)), metadata=METADATA)
        got = asyncio.create_task(events(call))
        attached = await scene.worker.submit()
        assert attached.tokens == ids("user: hi\n")
        assert attached.submit.sampling.max_tokens == 50
        await attached.text(TEXT)
        found = await got
        assert text_of(found) == TEXT
        assert kinds(found)[0] == "started"
        assert kinds(found)[-2:] == ["finish", "usage"]
        assert found[0].started.model == "m"
        assert found[0].started.response_id == attached.submit.response_id
        indexes = [event.delta.last_index for event in found if event.HasField("delta")]
        assert indexes == sorted(set(indexes))
        tokens = len(ids(TEXT))
        assert (found[-2].finish.reason, found[-2].finish.tokens) == ("stop", tokens)
        usage = found[-1].usage
        assert (usage.prompt_tokens, usage.completion_tokens) == (len(attached.tokens), tokens)


@pytest.mark.parametrize("by_ids", [True, False])
async def test_generate_from_text_and_from_token_ids(stage: Stage, by_ids: bool) -> None:
    prompt = pb.GenerateRequest(model="m", text="water")
    if by_ids:
        prompt = pb.GenerateRequest(model="m", token_ids=pb.TokenIds(ids=ids("water")))
    async with stage() as scene:
        got = asyncio.create_task(events(scene.door.inference.Generate(prompt, metadata=METADATA)))
        attached = await scene.worker.submit()
        assert attached.tokens == ids("water")
        await attached.text(" runs", finish=FinishReason.LENGTH)
        found = await got
        assert text_of(found) == " runs"
        assert found[-2].finish.reason == "length"


async def test_choices_logprobs_stops_and_tool_calls(stage: Stage) -> None:
    sampling = pb.Sampling(n=2, logprobs=1, stop=["END"])
    async with stage() as scene:
        request = pb.GenerateRequest(model="m", text="hi", sampling=sampling)
        got = asyncio.create_task(events(scene.door.inference.Generate(request, metadata=METADATA)))
        attached = await scene.worker.submit()
        await attached.send(ids("ab"), choice=0, logprobs=[-0.5] * len(ids("ab")), finish=FinishReason.STOP)
        await attached.send(ids("cENDx"), choice=1, logprobs=[-0.25] * len(ids("cENDx")))
        found = await got
        assert [text_of(found, choice) for choice in (0, 1)] == ["ab", "c"]
        ends = {event.finish.choice: event.finish.tokens for event in found if event.HasField("finish")}
        assert ends == {0: len(ids("ab")), 1: len(ids("cEND"))}
        rows = [row for event in found if event.HasField("delta") for row in event.delta.logprobs]
        assert {row.logprob for row in rows} == {-0.5, -0.25}
        assert len(rows) == sum(ends.values())

        tools = json.dumps([{"type": "function", "function": {"name": "w"}}])
        got = asyncio.create_task(events(scene.door.inference.Chat(chat(tools_json=tools), metadata=METADATA)))
        await (await scene.worker.submit()).text('<tool_call>{"name": "w", "arguments": {"a": 1}}</tool_call>')
        found = await got
        calls = [c for e in found if e.delta.tool_calls_json for c in json.loads(e.delta.tool_calls_json)]
        assert calls[0]["function"]["name"] == "w"
        assert "".join(call["function"]["arguments"] for call in calls) == '{"a": 1}'
        assert found[-2].finish.reason == "tool_calls"


async def test_list_models_health_and_reflection(stage: Stage) -> None:
    async with stage() as scene:
        models = await scene.door.inference.ListModels(pb.ListModelsRequest(), metadata=METADATA)
        assert [(model.id, model.context_length, model.ready) for model in models.models] == [("m", 4096, True)]
        health: health_pb2_grpc.HealthAsyncStub = health_pb2_grpc.HealthStub(scene.door.channel)
        for service in ("", "penstock.v1.Inference"):
            answer = await health.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        reflect = reflection_pb2_grpc.ServerReflectionStub(scene.door.channel)
        asked = reflect.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
        listed = (await anext(aiter(asked))).list_services_response.service
        asked.cancel()
        assert {"penstock.v1.Inference", "grpc.health.v1.Health"} <= {service.name for service in listed}


async def test_health_follows_the_routers(stage: Stage) -> None:
    async with stage() as scene:
        health: health_pb2_grpc.HealthAsyncStub = health_pb2_grpc.HealthStub(scene.door.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest(service=""))
        first: Any = await watch.read()
        assert first.status == health_pb2.HealthCheckResponse.SERVING
        await scene.router.stop()
        second: Any = await watch.read()
        assert second.status == health_pb2.HealthCheckResponse.NOT_SERVING
        watch.cancel()


BAD: list[tuple[pb.ChatRequest, str]] = [
    (chat(model="none"), "model"),
    (chat(messages=[]), "messages"),
    (chat(messages=[pb.ChatMessage(role="king", content="x")]), "messages[0].role"),
    (chat(sampling=pb.Sampling(temperature=-1)), "temperature"),
    (chat(sampling=pb.Sampling(max_tokens=0)), "max_tokens"),
    (chat(sampling=pb.Sampling(max_tokens=99_999)), "max_tokens"),
    (chat(sampling=pb.Sampling(n=99)), "n"),
    (chat(sampling=pb.Sampling(json_schema="{")), "sampling.json_schema"),
    (chat(tools_json="x"), "tools_json"),
    (chat(priority_class="urgent"), "priority_class"),
    (chat(messages=[pb.ChatMessage(role="user", content="word " * 40_000)]), "messages"),
]


async def test_bad_requests_name_the_field(stage: Stage) -> None:
    async with stage() as scene:
        for request, field in BAD:
            got = await refusal(scene.door.inference.Chat(request, metadata=METADATA))
            code = grpc.StatusCode.NOT_FOUND if field == "model" else grpc.StatusCode.INVALID_ARGUMENT
            assert (got.code, got.field) == (code, field), got.details
            assert got.reason
        for prompt in (pb.GenerateRequest(model="m"), pb.GenerateRequest(model="m", text="")):
            got = await refusal(scene.door.inference.Generate(prompt, metadata=METADATA))
            assert (got.code, got.field) == (grpc.StatusCode.INVALID_ARGUMENT, "prompt")
        assert scene.worker.submits.empty


@pytest.mark.parametrize("metadata", [(), (("authorization", "Bearer nope"),), (("authorization", "x"),)])
async def test_without_a_key(stage: Stage, metadata: tuple[tuple[str, str], ...]) -> None:
    def calls(door: Door) -> list[Any]:
        return [
            door.inference.Chat(chat(), metadata=metadata),
            door.inference.Generate(pb.GenerateRequest(model="m", text="x"), metadata=metadata),
        ]

    async with stage() as scene:
        for call in calls(scene.door):
            assert (await refusal(call)).code is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await scene.door.inference.ListModels(pb.ListModelsRequest(), metadata=metadata)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("reason", "code", "retry_s"),
    [
        (dispatch_pb2.QUEUE_FULL, grpc.StatusCode.RESOURCE_EXHAUSTED, 2.5),
        (dispatch_pb2.NO_WORKERS, grpc.StatusCode.UNAVAILABLE, 2.5),
        (dispatch_pb2.DEADLINE, grpc.StatusCode.DEADLINE_EXCEEDED, 2.5),
        (dispatch_pb2.TOO_LARGE, grpc.StatusCode.INVALID_ARGUMENT, 0.0),
    ],
)
async def test_the_routers_refusals(
    stage: Stage, reason: dispatch_pb2.RejectReason.ValueType, code: grpc.StatusCode, retry_s: float
) -> None:
    async with stage() as scene:
        scene.router.manual = True
        got = asyncio.create_task(refusal(scene.door.inference.Chat(chat(), metadata=METADATA)))
        scene.router.reject((await scene.router.acquires.get()).request, reason, 2500)
        assert ((await got).code, (await got).retry_s) == (code, retry_s)


async def test_a_worker_lost_for_good_in_the_middle(stage: Stage) -> None:
    async with stage() as scene:
        call = aiter(scene.door.inference.Chat(chat(), metadata=METADATA))
        await (await scene.worker.submit()).send(ids("ab"))
        assert [(await anext(call)).WhichOneof("event") for _ in range(2)] == ["started", "delta"]
        await scene.worker.stop()
        assert (await refusal(call)).code is grpc.StatusCode.UNAVAILABLE
        assert await counted(scene, "service_unavailable") == 1


async def counted(scene: Scene, outcome: str) -> float:
    """Calls that ended so."""
    return await scene.door.metric("penstock_gateway_requests_total", route="grpc", outcome=outcome)


async def test_a_stream_moves_for_grpc_too(stage: Stage) -> None:
    tokens = ids(TEXT)
    async with stage(workers=2) as scene:
        got = asyncio.create_task(events(scene.door.inference.Chat(chat(), metadata=METADATA)))
        await (await scene.worker.submit()).send(tokens[:3])
        await scene.worker.stop()
        second = await scene.workers[1].submit()
        await second.send(tokens[3:], finish=FinishReason.STOP)
        found = await got
        assert text_of(found) == TEXT
        assert found[-1].usage.completion_tokens == len(tokens)
        assert await counted(scene, "ok") == 1
