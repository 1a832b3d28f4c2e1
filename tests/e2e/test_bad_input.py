"""Bad input over the wire: the right status, and a message that names the field."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.e2e.harness import Mesh

CHAT = "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}


def post(mesh: Mesh, path: str, body: bytes, **headers: str) -> tuple[int, dict[str, Any], Any]:
    """Status, error and headers of a request that fails."""
    head = {"Authorization": f"Bearer {mesh.api_key}", "Content-Type": "application/json", **headers}
    request = urllib.request.Request(mesh.base_url + path, data=body, headers=head)
    with pytest.raises(urllib.error.HTTPError) as caught, urllib.request.urlopen(request, timeout=60):
        pass
    with caught.value as answer:
        return answer.code, json.loads(answer.read())["error"], answer.headers


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"not json", 400, "not valid JSON"),
        (b'{"model": "\xff"}', 400, "not valid UTF-8"),
        (b"", 400, "empty"),
        (b"[1]", 400, "JSON object"),
        (b"{" * 50_000, 400, "JSON"),
        (b"x" * 5_000_000, 413, "5000000 bytes"),
    ],
    ids=["text", "utf-8", "empty", "list", "deep", "large"],
)
def test_bodies_that_are_no_request(sim_mesh: Mesh, body: bytes, status: int, words: str) -> None:
    got, error, _ = post(sim_mesh, CHAT, body)
    assert (got, words in error["message"]) == (status, True), error


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"model": "gpt-9"}, 404, "model"),
        ({"messages": 5}, 400, "messages"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [{"role": "user", "content": "word " * 200_000}]}, 400, "messages"),
        ({"max_tokens": -1}, 400, "max_tokens"),
        ({"max_tokens": 10**7}, 400, "max_tokens"),
        ({"max_tokens": "many"}, 400, "max_tokens"),
        ({"temperature": -1}, 400, "temperature"),
        ({"n": 1.5}, 400, "n"),
        ({"stop": [1]}, 400, "stop[0]"),
        ({"flavour": 1}, 400, "flavour"),
        ({"audio": {"voice": "x"}}, 400, "audio"),
        ({"response_format": {"type": "json_object"}}, 400, "response_format"),
    ],
)
def test_fields_are_named(sim_mesh: Mesh, fields: dict[str, Any], status: int, param: str) -> None:
    body = json.dumps({"model": sim_mesh.model, **HI, **fields}).encode()
    got, error, headers = post(sim_mesh, CHAT, body, **{"x-request-id": "mine"})
    assert (got, error["param"], error["type"]) == (status, param, "invalid_request_error"), error
    assert param.split("[")[0] in error["message"]
    assert error["request_id"] == headers["x-request-id"] == "mine"


def test_the_mesh_still_answers(sim_mesh: Mesh) -> None:
    body = json.dumps({"model": sim_mesh.model, **HI, "max_tokens": 3}).encode()
    head = {"Authorization": f"Bearer {sim_mesh.api_key}"}
    request = urllib.request.Request(sim_mesh.base_url + CHAT, data=body, headers=head)
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.loads(answer.read())["usage"]["completion_tokens"] == 3
