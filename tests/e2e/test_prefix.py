"""Requests go where their prompt is cached, and what the router expects of the cache comes true."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

import numpy as np
import openai

from services.worker import card as cards
from services.worker.engine import sim_tokens
from tests.e2e.harness import NANO
from tests.e2e.prefixes import hits, prompt

if TYPE_CHECKING:
    from tests.e2e.harness import Mesh


def client(mesh: Mesh, gateway: int = 0) -> openai.AsyncOpenAI:
    address = mesh.addresses("gateway")[gateway]
    return openai.AsyncOpenAI(base_url=f"http://{address}/v1", api_key=mesh.api_key, max_retries=0, timeout=30)


async def test_a_shared_prompt_goes_to_the_worker_that_has_it(sim_mesh: Mesh) -> None:
    """For every prompt anew, so that chance would fail; through whichever gateway."""
    async with client(sim_mesh) as one, client(sim_mesh, 1) as two:
        for seed in range(12):
            tokens = prompt(seed, 400)
            assert await hits(one, tokens) == (0, 0)
            assert await hits(two, tokens) == (384, 384)  # the last token is always computed
            assert await hits(two, tokens[:200] + prompt(100 + seed, 90)) == (192, 192)


async def test_expected_hits_come_true_under_load(sim_mesh: Mesh) -> None:
    """A few prefixes, many questions after each, sixteen at once: the router's precision and recall are near 1."""
    pick = random.Random(5)
    asked = [prompt(200 + pick.randrange(4), 320) + prompt(300 + number, 40) for number in range(64)]
    slots = asyncio.Semaphore(16)

    async def ask(tokens: list[int]) -> tuple[int, int]:
        async with slots:
            return await hits(api, tokens)

    async with client(sim_mesh) as api:
        for seed in range(200, 204):
            await hits(api, prompt(seed, 320))
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(ask(tokens)) for tokens in asked]
    results = [task.result() for task in running]
    both = sum(min(pair) for pair in results)
    assert both >= 0.9 * sum(expected for expected, _ in results)
    assert both >= 0.9 * sum(found for _, found in results)
    assert sum(found for _, found in results) >= 0.8 * 64 * 320
    assert "precision" not in sim_mesh.logs("router-0") + sim_mesh.logs("router-1")  # said when one isn't trusted


async def test_the_next_turn_finds_the_answer_of_the_last(crash_mesh: Mesh) -> None:
    """Only the worker knows that it holds the answer's blocks: the router hears it from there."""
    tokens = prompt(10, 400)
    source = cards.ModelSource(str(NANO), "")
    vocabulary = cards.ordinary_tokens(cards.tokenizer_bytes(source), cards.vocabulary_size(source))
    key = sim_tokens.answer_key(np.array(tokens, dtype=np.uint32), None, 0)
    answer = sim_tokens.answer_tokens(key, 0, 64, vocabulary)
    async with client(crash_mesh) as api:
        assert await hits(api, tokens, max_tokens=64) == (0, 0)
        # By the time that the same worker has answered this, it has long told the router.
        assert await hits(api, prompt(11, 20), max_tokens=64) == (0, 0)
        # The KV of an answer's last token is never computed.
        assert await hits(api, tokens + answer + prompt(12, 30)) == (448, 448)


async def test_a_new_router_hears_what_workers_hold_and_forgets_a_dead_one(crash_mesh: Mesh) -> None:
    tokens, other = prompt(1, 400), prompt(2, 400)
    async with client(crash_mesh) as api:
        assert await hits(api, tokens) == (0, 0)
        crash_mesh.wait_until_restarted("router-0", crash_mesh.kill("router-0"))
        assert await hits(api, other, max_tokens=64) == (0, 0)  # when it is answered, the snapshot is there
        assert await hits(api, tokens) == (384, 384)
        crash_mesh.wait_until_restarted("worker-0", crash_mesh.kill("worker-0"))
        assert await hits(api, tokens) == (0, 0)
