"""The HTTP door: what is wrong is said in OpenAI's shape, and the connection survives what it can."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from services.common.frames import FinishReason
from tests.integration.gateway.doors import KEY
from tests.integration.gateway.peers import TURN_S, ids

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Scene, Stage

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
HI = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
MEGABYTE = 1024 * 1024
LONG = "word " * 40_000

# path, body, status, param, code
BAD: list[tuple[str, Any, int, str | None, str]] = [
    (CHAT, b"", 400, None, "invalid_json"),
    (CHAT, b"hello", 400, None, "invalid_json"),
    (CHAT, b'{"model": "m"', 400, None, "invalid_json"),
    (CHAT, b'{"model": "\xff\xfe"}', 400, None, "invalid_json"),
    (CHAT, b"[" * 100_000, 400, None, "invalid_json"),
    (CHAT, b"[]", 400, None, "invalid_request"),
    (CHAT, b"null", 400, None, "invalid_request"),
    (CHAT, {}, 400, "model", "invalid_request"),
    (CHAT, {"model": "m"}, 400, "messages", "invalid_request"),
    (CHAT, {**HI, "model": 5}, 400, "model", "invalid_request"),
    (CHAT, {**HI, "model": "gpt-5"}, 404, "model", "model_not_found"),
    (CHAT, {**HI, "messages": "hi"}, 400, "messages", "invalid_request"),
    (CHAT, {**HI, "messages": [{"role": "user", "content": 5}]}, 400, "messages[0].content", "invalid_request"),
    (CHAT, {**HI, "messages": [{"role": "user"}]}, 400, "messages[0].content", "invalid_request"),
    (CHAT, {**HI, "max_tokens": -1}, 400, "max_tokens", "invalid_request"),
    (CHAT, {**HI, "max_tokens": 1.5}, 400, "max_tokens", "invalid_request"),
    (CHAT, {**HI, "max_tokens": 99_999}, 400, "max_tokens", "context_length_exceeded"),
    (CHAT, {**HI, "n": 0}, 400, "n", "invalid_request"),
    (CHAT, {**HI, "n": -3}, 400, "n", "invalid_request"),
    (CHAT, {**HI, "temperature": "hot"}, 400, "temperature", "invalid_request"),
    (CHAT, {**HI, "temperature": -0.1}, 400, "temperature", "invalid_request"),
    (CHAT, {**HI, "top_p": 0}, 400, "top_p", "invalid_request"),
    (CHAT, {**HI, "stream": "yes"}, 400, "stream", "invalid_request"),
    (CHAT, {**HI, "stop": [""]}, 400, "stop[0]", "invalid_request"),
    (CHAT, {**HI, "logit_bias": {"99999": 1}}, 400, "logit_bias", "invalid_request"),
    (CHAT, {**HI, "flavour": "sweet"}, 400, "flavour", "unknown_field"),
    (CHAT, {**HI, "modalities": ["audio"]}, 400, "modalities", "unsupported"),
    (CHAT, {**HI, "service_tier": "gold"}, 400, "service_tier", "invalid_request"),
    (CHAT, {**HI, "messages": [{"role": "user", "content": LONG}]}, 400, "messages", "context_length_exceeded"),
    (TEXT, {"model": "m", "prompt": LONG}, 400, "prompt", "context_length_exceeded"),
    (TEXT, {"model": "m", "prompt": ""}, 400, "prompt", "invalid_request"),
    (TEXT, {"model": "m", "prompt": [-1]}, 400, "prompt[0]", "invalid_request"),
    (TEXT, {"model": "m", "prompt": [99_999]}, 400, "prompt", "invalid_request"),
    (TEXT, {"model": "m", "prompt": ["a", "b"]}, 400, "prompt", "unsupported"),
    (CHAT, b"x" * (5 * MEGABYTE), 413, None, "payload_too_large"),
    ("/tokenize", {"model": "m"}, 400, None, "invalid_request"),
    ("/detokenize", {"model": "m", "tokens": [-1]}, 400, "tokens[0]", "invalid_request"),
]  # fmt: skip


async def test_bad_requests_name_the_field_and_the_gateway_lives(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    async with stage() as scene:
        for number, (path, body, status, param, code) in enumerate(BAD):
            answer = await scene.door.post(path, body, **{"x-request-id": f"bad-{number}"})
            case = f"{path} {str(body)[:80]}: {answer.body}"
            assert (answer.status, answer.error["param"], answer.error["code"]) == (status, param, code), case
            assert answer.error["type"] == "invalid_request_error", case
            assert answer.headers["x-request-id"] == answer.error["request_id"] == f"bad-{number}", case
            assert answer.headers["Server"] == "penstock"
            if param is not None:
                assert param.rpartition(".")[2].split("[")[0] in answer.error["message"] or code == "model_not_found", (
                    case
                )
        asked = asyncio.create_task(scene.door.chat())
        await (await scene.worker.submit()).text("still here")
        assert (await asked).status == 200
        assert scene.worker.submits.empty
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (None, "missing_api_key"), ("", "missing_api_key"), ("Bearer", "invalid_api_key"),
        ("Bearer ", "invalid_api_key"), ("Basic abc", "invalid_api_key"), ("Bearer sk-wrong", "invalid_api_key"),
        (f"bearer {KEY}x", "invalid_api_key"),
    ],
)  # fmt: skip
async def test_without_a_key_there_is_nothing(stage: Stage, header: str | None, code: str) -> None:
    async with stage() as scene:
        headers = {} if header is None else {"Authorization": header}
        for method, path in [("POST", CHAT), ("POST", TEXT), ("GET", "/v1/models"), ("GET", "/v1/models/m"),
                             ("POST", "/tokenize"), ("POST", "/detokenize")]:  # fmt: skip
            async with scene.door.session.request(method, scene.door.base + path, headers=headers) as response:
                error = (await response.json())["error"]
                assert (response.status, error["code"], error["type"]) == (401, code, "authentication_error")


async def test_unknown_paths_and_methods(stage: Stage) -> None:
    async with stage() as scene:
        answer = await scene.door.get("/v2/chat")
        assert (answer.status, answer.error["code"], answer.error["type"]) == (
            404, "unknown_path", "invalid_request_error",
        )  # fmt: skip
        async with scene.door.session.delete(scene.door.base + CHAT, headers={"x-request-id": "mine"}) as response:
            assert (response.status, response.headers["Allow"]) == (405, "POST")
            assert (await response.json())["error"]["request_id"] == response.headers["x-request-id"] == "mine"


@pytest.mark.parametrize("sent", ["x" * 129, "caf\u00e9", "", "a\tb"])
async def test_a_request_id_that_is_none_is_replaced(stage: Stage, sent: str) -> None:
    async with (
        stage() as scene,
        scene.door.session.get(scene.door.base + "/nope", headers={"x-request-id": sent}) as response,
    ):
        assert response.headers["x-request-id"].startswith("req-")


class Socket:
    """A bare connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self.writer = reader, writer

    @classmethod
    async def to(cls, scene: Scene) -> Socket:
        """Connect."""
        host, port = scene.door.http.split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def send(self, path: str, data: bytes, *headers: str, version: str = "1.1", length: int = -1) -> None:
        """Write a request; `length` announces another than the body's."""
        head = [f"POST {path} HTTP/{version}", "Host: x", f"Authorization: Bearer {KEY}", *headers]
        if not any("Transfer-Encoding" in header for header in headers):
            head.append(f"Content-Length: {len(data) if length < 0 else length}")
        self.writer.write("\r\n".join(head).encode() + b"\r\n\r\n" + data)

    async def head(self) -> tuple[int, dict[str, str]]:
        """Status and headers of the next response."""
        async with asyncio.timeout(TURN_S):
            lines = (await self._reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, value in headers.items()}

    async def body(self, headers: dict[str, str]) -> bytes:
        """The body that belongs to them."""
        async with asyncio.timeout(TURN_S):
            if "content-length" in headers:
                return await self._reader.readexactly(int(headers["content-length"]))
            if headers.get("transfer-encoding") == "chunked":
                return b"".join([chunk async for chunk in self._chunks()])
            return await self._reader.read()

    async def _chunks(self) -> Any:
        while size := int(await self._reader.readline(), 16):
            yield (await self._reader.readexactly(size + 2))[:-2]
        await self._reader.readline()

    async def closed(self) -> bool:
        """Whether the server closes it now."""
        async with asyncio.timeout(TURN_S):
            return await self._reader.read(1) == b""


STREAM = json.dumps({**HI, "stream": True}).encode()


async def test_a_connection_is_used_again_after_a_stream(stage: Stage) -> None:
    async with stage() as scene:
        link = await Socket.to(scene)
        for text in ("one", "two"):
            link.send(CHAT, STREAM)
            await (await scene.worker.submit()).text(text)
            status, headers = await link.head()
            assert (status, headers["transfer-encoding"], headers["content-type"]) == (
                200, "chunked", "text/event-stream; charset=utf-8",
            )  # fmt: skip
            assert float(headers["x-penstock-queue-ms"]) > 0
            assert headers["server-timing"].startswith("queue;dur=")
            assert "ttft;dur=" in headers["server-timing"]
            assert (await link.body(headers)).endswith(b"data: [DONE]\n\n")
        link.send(CHAT, b"{}")
        assert (await link.head())[0] == 400
        link.writer.close()


async def test_an_http_1_0_client_gets_a_stream_without_chunks(stage: Stage) -> None:
    async with stage() as scene:
        link = await Socket.to(scene)
        link.send(CHAT, STREAM, version="1.0")
        await (await scene.worker.submit()).text("old")
        status, headers = await link.head()
        assert (status, "transfer-encoding" in headers) == (200, False)
        body = await link.body(headers)
        assert body.startswith(b"data: {")
        assert body.endswith(b"data: [DONE]\n\n")
        link.writer.close()


async def test_garbage_after_a_request_ends_that_connection_only(stage: Stage) -> None:
    async with stage() as scene:
        link = await Socket.to(scene)
        link.send(CHAT, b"{}")
        link.writer.write(b"\x00\x01 garbage \r\n\r\n")
        assert (await link.head())[0] == 400
        link.writer.close()
        link = await Socket.to(scene)
        link.writer.write(b"\x16\x03\x01 tls?\r\n\r\n")
        assert (await link.head())[0] == 400
        link.writer.close()
        assert (await scene.door.get("/health/ready")).status == 200


@pytest.fixture
def short_linger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.http.server._LINGER_S", 0.1)


@pytest.mark.usefixtures("short_linger")
async def test_a_body_that_is_announced_as_too_large_is_refused_unread(stage: Stage) -> None:
    async with stage(body_bytes_max=2048) as scene:
        link = await Socket.to(scene)
        link.send(CHAT, b"x", length=10**12)
        status, headers = await link.head()
        assert (status, headers["connection"]) == (413, "close")
        assert b"payload_too_large" in await link.body(headers)
        assert await link.closed()
        link.writer.close()


@pytest.mark.usefixtures("short_linger")
async def test_a_body_that_turns_out_too_large_is_not_read_for_ever(stage: Stage) -> None:
    async with stage(body_bytes_max=2048) as scene:
        link = await Socket.to(scene)
        link.send(CHAT, b"1000\r\n" + b"x" * 4096 + b"\r\n", "Transfer-Encoding: chunked")
        status, headers = await link.head()
        assert status == 413
        assert b"payload_too_large" in await link.body(headers)
        assert await link.closed()
        link.writer.close()


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        (["Content-Encoding: gzip"], b"this is not gzip"),
        (["Transfer-Encoding: chunked"], b"zz\r\nnot a chunk\r\n"),
    ],
    ids=["gzip", "chunks"],
)
async def test_a_body_that_can_not_be_decoded(
    stage: Stage, caplog: pytest.LogCaptureFixture, headers: list[str], body: bytes
) -> None:
    async with stage() as scene:
        link = await Socket.to(scene)
        link.send(CHAT, body, *headers)
        assert (await link.head())[0] == 400
        link.writer.close()
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_a_body_that_never_comes(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.gateway.http.routes.BODY_S_MAX", 0.05)
    async with stage() as scene:
        link = await Socket.to(scene)
        link.send(CHAT, b"{", length=100)
        status, headers = await link.head()
        assert (status, b"body_timeout" in await link.body(headers)) == (400, True)
        link.writer.close()


async def test_health_and_metrics(stage: Stage) -> None:
    async with stage() as scene:
        assert (await scene.door.get("/health/live")).body == {"status": "ok"}
        ready = await scene.door.get("/health/ready")
        assert ready.body == {"status": "ok", "checks": {"router": True, "model": True}}
        asked = asyncio.create_task(scene.door.chat(n=2))
        attached = await scene.worker.submit()
        await attached.send(ids("abc"), choice=0, finish=FinishReason.STOP, cached=2)
        await attached.send(ids("de"), choice=1, finish=FinishReason.LENGTH, cached=2)
        usage = (await asked).body["usage"]
        await scene.door.get("/nowhere")
        async with scene.door.session.get(scene.door.base + "/metrics") as response:
            families = {family.name: family for family in text_string_to_metric_families(await response.text())}
        for kind in ("prompt", "completion"):
            assert await scene.door.metric("penstock_tokens_total", model="m", kind=kind) == usage[f"{kind}_tokens"]
        assert await scene.door.metric("penstock_tokens_total", kind="cached") == 2
        assert await scene.door.metric("penstock_gateway_requests_total", route=CHAT, outcome="ok") == 1
        assert await scene.door.metric("penstock_gateway_requests_total", route="unknown", outcome="unknown_path") == 1
        for name in (
            "penstock_time_to_first_token_seconds",
            "penstock_request_duration_seconds",
            "penstock_queue_seconds",
        ):
            assert await scene.door.metric(f"{name}_count", model="m") == 1
            assert families[name].type == "histogram"


async def test_a_full_gateway_says_so(stage: Stage) -> None:
    async with stage(requests_max=1) as scene:
        first = asyncio.create_task(scene.door.chat())
        attached = await scene.worker.submit()
        refused = await scene.door.chat()
        assert (refused.status, refused.error["type"], refused.headers["Retry-After"]) == (429, "rate_limit_error", "1")
        await attached.text("ok")
        assert (await first).status == 200


@pytest.mark.parametrize("prompt", ["x" * 1000, "🌍" * 200, " ", "\n", "\0", "<|end|>"])
async def test_prompts_of_many_kinds_come_whole(stage: Stage, prompt: str) -> None:
    async with stage() as scene, scene.door.stream(prompt) as stream:
        attached = await scene.worker.submit()
        assert attached.tokens == ids(prompt)
        await attached.send(ids("ok"), finish=FinishReason.STOP)
        assert (await stream.rest()).text() == "ok"


async def test_tokenize_and_detokenize(stage: Stage) -> None:
    async with stage() as scene:
        answer = await scene.door.post("/tokenize", {"model": "m", "prompt": "water runs 🌍"})
        assert answer.body == {
            "count": len(ids("water runs 🌍")),
            "max_model_len": 4096,
            "tokens": ids("water runs 🌍"),
        }
        back = await scene.door.post("/detokenize", {"model": "m", "tokens": answer.body["tokens"]})
        assert back.body == {"prompt": "water runs 🌍"}
        chat = await scene.door.post("/tokenize", HI)
        assert chat.body["tokens"] == ids("user: hi\n")


async def test_emoji_split_over_tokens_never_show_half_a_character(stage: Stage) -> None:
    text = "🌍🚀👩‍👩‍👧 ok 世界"
    async with stage() as scene, scene.door.stream() as stream:
        await (await scene.worker.submit()).text(text)
        answer = await stream.rest()
    assert answer.text() == text
    assert all("\ufffd" not in event.text for event in answer.events if event.data != "[DONE]")
