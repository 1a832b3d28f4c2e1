"""A grpcio client against a running mesh."""

from __future__ import annotations

import json
import urllib.request
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from penstock.v1 import inference_pb2 as pb
from penstock.v1 import inference_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.e2e.harness import Mesh

HI = [pb.ChatMessage(role="user", content="How does a penstock work?")]


@pytest.fixture
def channel(sim_mesh: Mesh) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(sim_mesh.grpc_target) as made:
        yield made


class Client:
    """The service, with the mesh's key."""

    def __init__(self, mesh: Mesh, channel: grpc.Channel) -> None:
        self.model = mesh.model
        self._metadata = (("authorization", f"Bearer {mesh.api_key}"),)
        self.stub: inference_pb2_grpc.InferenceStub = inference_pb2_grpc.InferenceStub(channel)

    def chat(self, timeout_s: float = 60, **sampling: Any) -> Any:
        request = pb.ChatRequest(model=self.model, messages=HI, sampling=pb.Sampling(**sampling))
        return self.stub.Chat(request, metadata=self._metadata, timeout=timeout_s)

    def generate(self, timeout_s: float = 60, **fields: Any) -> Any:
        request = pb.GenerateRequest(model=self.model, **fields)
        return self.stub.Generate(request, metadata=self._metadata, timeout=timeout_s)

    def models(self) -> list[pb.Model]:
        return list(self.stub.ListModels(pb.ListModelsRequest(), metadata=self._metadata, timeout=60).models)


@pytest.fixture
def client(sim_mesh: Mesh, channel: grpc.Channel) -> Client:
    return Client(sim_mesh, channel)


def test_a_chat_and_its_usage(client: Client) -> None:
    events = list(client.chat(max_tokens=20, n=2))
    assert events[0].HasField("started")
    ends = {event.finish.choice: event.finish.tokens for event in events if event.HasField("finish")}
    assert ends == {0: 20, 1: 20}
    assert events[-1].usage.completion_tokens == 40
    texts = ["".join(e.delta.text for e in events if e.HasField("delta") and e.delta.choice == n) for n in (0, 1)]
    assert texts[0] != texts[1]
    again = list(client.chat(max_tokens=20, n=2))
    assert "".join(e.delta.text for e in again if e.HasField("delta") and e.delta.choice == 0) == texts[0]


def test_text_and_its_token_ids_say_the_same(sim_mesh: Mesh, client: Client) -> None:
    def text(**prompt: Any) -> str:
        events = client.generate(**prompt, sampling=pb.Sampling(max_tokens=12))
        return "".join(event.delta.text for event in events)

    body = json.dumps({"model": sim_mesh.model, "prompt": "Water runs"}).encode()
    head = {"Authorization": f"Bearer {sim_mesh.api_key}"}
    with urllib.request.urlopen(
        urllib.request.Request(f"{sim_mesh.base_url}/tokenize", data=body, headers=head), timeout=60
    ) as answer:
        tokens = json.loads(answer.read())["tokens"]
    assert text(text="Water runs") == text(token_ids=pb.TokenIds(ids=tokens)) != text(text="Water")


def test_models_health_and_reflection(client: Client, channel: grpc.Channel) -> None:
    assert [(model.id, model.ready) for model in client.models()] == [(client.model, True)]
    health: health_pb2_grpc.HealthStub = health_pb2_grpc.HealthStub(channel)
    answer = health.Check(health_pb2.HealthCheckRequest(service="penstock.v1.Inference"), timeout=60)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
    reflection = reflection_pb2_grpc.ServerReflectionStub(channel)
    asked = iter([reflection_pb2.ServerReflectionRequest(list_services="")])
    listed = next(reflection.ServerReflectionInfo(asked, timeout=60)).list_services_response.service
    assert "penstock.v1.Inference" in {service.name for service in listed}


def test_a_cancelled_call_leaves_room(client: Client) -> None:
    for _ in range(3):
        call = client.chat(max_tokens=20_000, ignore_eos=True)
        next(call)
        call.cancel()
    assert list(client.chat(max_tokens=3))[-1].usage.completion_tokens == 3


def test_a_deadline(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(client.chat(timeout_s=0.5, max_tokens=20_000, ignore_eos=True))
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED


def test_refusals(client: Client) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        list(client.chat(temperature=9))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "temperature" in (caught.value.details() or "")
    with pytest.raises(grpc.RpcError) as caught:
        list(client.stub.Chat(pb.ChatRequest(model=client.model, messages=HI), timeout=60))
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
