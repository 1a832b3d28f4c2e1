"""What the README says about curl."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.e2e.harness import Mesh


def curl(mesh: Mesh, path: str, *arguments: str, body: Any = None) -> str:
    """Run curl against the mesh; its output."""
    command = ["curl", "-sS", "--max-time", "60", "-H", f"Authorization: Bearer {mesh.api_key}", *arguments]
    if body is not None:
        command += ["-H", "Content-Type: application/json", "--data-binary", "@-"]
    return subprocess.run(
        [*command, mesh.base_url + path], input=None if body is None else json.dumps(body), capture_output=True,
        text=True, timeout=90, check=True,
    ).stdout  # fmt: skip


def chat(mesh: Mesh, **fields: Any) -> dict[str, Any]:
    return {"model": mesh.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, **fields}


def test_a_chat(sim_mesh: Mesh) -> None:
    answer = json.loads(curl(sim_mesh, "/v1/chat/completions", body=chat(sim_mesh)))
    assert answer["usage"]["completion_tokens"] == 8


@pytest.mark.parametrize("version", ["--http1.1", "--http1.0"])
def test_a_stream(sim_mesh: Mesh, version: str) -> None:
    out = curl(sim_mesh, "/v1/chat/completions", version, "-N", "-i", body=chat(sim_mesh, stream=True))
    head, _, stream = out.replace("\r\n", "\n").partition("\n\n")
    assert head.startswith("HTTP/1.")
    assert "200 OK" in head
    assert "content-type: text/event-stream" in head.lower()
    assert ("transfer-encoding: chunked" in head.lower()) == (version == "--http1.1")
    assert "server: penstock" in head.lower()
    blocks = [block for block in stream.split("\n\n") if block]
    assert blocks[-1] == "data: [DONE]"
    idents = [int(line.removeprefix("id: ")) for line in stream.splitlines() if line.startswith("id: ")]
    assert idents[-1] == 8
    assert idents == sorted(set(idents))


def test_one_connection_serves_several_requests(sim_mesh: Mesh) -> None:
    model = sim_mesh.base_url + f"/v1/models/{sim_mesh.model}"
    out = curl(sim_mesh, "/v1/models", model, "-w", "\n%{num_connects}\n")
    assert out.splitlines().count("1") == 1
    assert out.splitlines().count("0") == 1


def test_a_body_of_five_megabytes_is_refused(sim_mesh: Mesh) -> None:
    out = curl(sim_mesh, "/v1/chat/completions", "-w", "\n%{http_code}", body=chat(sim_mesh, user="x" * 5_000_000))
    body, _, status = out.rpartition("\n")
    assert (status, json.loads(body)["error"]["code"]) == ("413", "payload_too_large")


def test_health_and_metrics_need_no_key(sim_mesh: Mesh) -> None:
    for path, words in [("/health/live", "ok"), ("/health/ready", "ok"), ("/metrics", "penstock_gateway_requests")]:
        out = subprocess.run(
            ["curl", "-sS", "--fail", "--max-time", "30", sim_mesh.base_url + path], capture_output=True, text=True,
            timeout=60, check=True,
        ).stdout  # fmt: skip
        assert words in out
