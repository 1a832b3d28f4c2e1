"""What a router is told of a prompt, and of what became of its expectations."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from penstock.v1 import dispatch_pb2, inference_pb2

from services.common.blocks import chain, root
from services.common.frames import FinishReason
from tests.integration.gateway.doors import KEY
from tests.integration.gateway.peers import card, ids

if TYPE_CHECKING:
    from tests.integration.gateway.conftest import Stage

PROMPT = ids("The quick brown fox jumps over the lazy dog. " * 3)
TEXT = "The valve opens, and water runs down to the mill."
TOKENS = ids(TEXT)
ROOT = root(card().meta.version)


async def test_a_router_hears_the_names_of_the_prompts_blocks(stage: Stage) -> None:
    async with stage() as scene:
        body = {"model": "m", "prompt": PROMPT, "max_tokens": 4}
        for more, headers in (({}, {}), ({"user": "alice"}, {}), ({}, {"x-penstock-session": "alice"})):
            answer = asyncio.create_task(scene.door.post("/v1/completions", body | more, **headers))
            await (await scene.worker.submit()).text("ok")
            said = await answer
            assert said.headers["x-penstock-matched-tokens"] == "0"
        plain, by_user, by_header = [await scene.router.acquires.get() for _ in range(3)]
        assert plain.block_hashes == chain(ROOT, PROMPT)
        assert len(plain.block_hashes) == len(PROMPT) // 16 * 16 >= 32
        assert plain.session == ""
        assert by_user.session == by_header.session != ""
        assert "alice" not in by_user.session


async def test_after_a_move_they_cover_the_tokens_so_far(stage: Stage) -> None:
    async with stage(workers=2) as scene, scene.door.stream("hi", max_tokens=90) as stream:
        first = await scene.worker.submit()
        await first.send(TOKENS[:40])
        await stream.text()
        await scene.worker.stop()
        second = await scene.workers[1].submit()
        await second.send(TOKENS[40:], finish=FinishReason.STOP)
        await stream.rest()
        asks = [await scene.router.acquires.get() for _ in range(2)]
        assert not asks[0].block_hashes  # the prompt fills no block
        assert asks[1].block_hashes == chain(ROOT, [*ids("hi"), *TOKENS[:40]])
        assert asks[1].block_hashes


async def test_the_release_says_what_was_cached_when_it_came(stage: Stage) -> None:
    """The second choice finds the blocks of the first."""
    async with stage() as scene:
        answer = asyncio.create_task(scene.door.chat(n=2))
        submit = await scene.worker.submit()
        for choice, cached in ((0, 16), (1, 48)):
            await submit.send(ids("ok"), choice=choice, finish=FinishReason.STOP, cached=cached)
        await answer
        release = await scene.router.releases.get()
        assert (release.outcome, release.cached_tokens) == (dispatch_pb2.FINISHED, 16)


async def test_an_answer_cut_by_a_stop_string_speaks_for_nothing(stage: Stage) -> None:
    """The engine's figure comes with its end, which nobody waits for: what the router expected stands."""
    async with stage() as scene:
        scene.router.manual = True
        answer = asyncio.create_task(scene.door.chat(stop="v"))
        asked = await scene.router.acquires.get()
        scene.router.grant(asked.request, scene.worker, matched_tokens=32)
        await (await scene.worker.submit()).send(TOKENS)
        assert (await answer).headers["x-penstock-matched-tokens"] == "32"
        assert (await scene.router.releases.get()).cached_tokens == 32


async def test_a_grpc_client_names_its_conversation_too(stage: Stage) -> None:
    async with stage() as scene:
        request = inference_pb2.GenerateRequest(model="m", token_ids=inference_pb2.TokenIds(ids=PROMPT))
        metadata = [("authorization", f"Bearer {KEY}"), ("x-penstock-session", "alice")]
        said = []
        for more in (metadata, metadata[:1]):
            call = scene.door.inference.Generate(request, metadata=more)
            await (await scene.worker.submit()).text("ok")
            assert [event async for event in call]
            said.append(await scene.router.acquires.get())
        assert said[0].block_hashes == said[1].block_hashes == chain(ROOT, PROMPT)
        assert said[0].session
        assert not said[1].session
