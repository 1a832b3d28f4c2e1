"""Errors arrive as the openai-python client's own classes, with what it needs to act on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import openai
import pytest

from tests.e2e.harness import start_mesh

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openai.types.chat import ChatCompletionMessageParam

    from tests.e2e.harness import Mesh

HI: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


def client_of(mesh: Mesh, key: str | None = None) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{mesh.base_url}/v1", api_key=key or mesh.api_key, max_retries=0, timeout=60)


def test_a_wrong_key(sim_mesh: Mesh) -> None:
    with client_of(sim_mesh, "sk-wrong") as client, pytest.raises(openai.AuthenticationError) as caught:
        client.chat.completions.create(model=sim_mesh.model, messages=HI)
    assert caught.value.code == "invalid_api_key"
    assert caught.value.request_id


def test_an_unknown_model(sim_mesh: Mesh) -> None:
    with client_of(sim_mesh) as client:
        for ask in (
            lambda: client.chat.completions.create(model="gpt-9", messages=HI),
            lambda: client.models.retrieve("gpt-9"),
        ):
            with pytest.raises(openai.NotFoundError) as caught:
                ask()
            assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


def test_a_bad_field(sim_mesh: Mesh) -> None:
    with client_of(sim_mesh) as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=sim_mesh.model, messages=HI, temperature=9)
    assert caught.value.param == "temperature"


def test_a_deadline(sim_mesh: Mesh) -> None:
    with client_of(sim_mesh) as client, pytest.raises(openai.InternalServerError) as caught:
        client.chat.completions.create(
            model=sim_mesh.model, messages=HI, max_tokens=20_000, extra_body={"ignore_eos": True},
            extra_headers={"x-request-timeout-ms": "200"},
        )  # fmt: skip
    assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")


def test_a_deadline_inside_a_stream_is_raised_by_the_client(sim_mesh: Mesh) -> None:
    with client_of(sim_mesh) as client:
        stream = client.chat.completions.create(
            model=sim_mesh.model, messages=HI, max_tokens=20_000, stream=True, extra_body={"ignore_eos": True},
            extra_headers={"x-request-timeout-ms": "1000"},
        )  # fmt: skip
        with pytest.raises(openai.APIError, match="deadline passed"):
            for _ in stream:
                pass


@pytest.fixture(scope="module")
def tiny_mesh(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mesh]:
    """Room for one sequence, none to wait."""
    env = {"PENSTOCK_SIM_STEP_MS": "20", "PENSTOCK_MAX_SEQUENCES": "1", "PENSTOCK_QUEUE_REQUESTS_MAX": "0"}
    with start_mesh(tmp_path_factory.mktemp("tiny") / "state", env=env) as mesh:
        yield mesh


def test_a_full_queue_is_a_rate_limit_with_a_time_to_retry(tiny_mesh: Mesh) -> None:
    with client_of(tiny_mesh) as client:
        running = client.chat.completions.create(
            model=tiny_mesh.model, messages=HI, max_tokens=2000, stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(running))
        with pytest.raises(openai.RateLimitError) as caught:
            client.chat.completions.create(model=tiny_mesh.model, messages=HI)
        assert caught.value.code == "rate_limit_exceeded"
        assert int(caught.value.response.headers["Retry-After"]) >= 1
        running.close()
