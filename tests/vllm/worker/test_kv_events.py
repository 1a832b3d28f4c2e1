"""What the worker tells of vLLM's prefix cache: named as gateways name it, and true to what vLLM itself finds."""

from __future__ import annotations

import random
import socket
from typing import TYPE_CHECKING

import pytest

from services.common.blocks import BLOCK_TOKENS, chain, root, split
from services.common.card import ModelCard
from tests.integration.worker.harness import attached, fake_router, fetch_card, submit
from tests.vllm.worker.conftest import start

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.integration.worker.harness import Attached, FakeRouter
    from tests.vllm.worker.conftest import VllmWorker

ENGINE_BLOCK = 128
"""Tokens; vLLM's on a CPU."""
ENGINE_BLOCKS = 24


@pytest.fixture(scope="module")
def router_port() -> int:
    """Free when it was asked for."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@pytest.fixture(scope="module")
def reporting(tmp_path_factory: pytest.TempPathFactory, adapter: Path, router_port: int) -> Iterator[VllmWorker]:
    """A worker with a small KV cache and the adapter `poet`, for whom a router may come on `router_port`."""
    flags = ("--routers", f"127.0.0.1:{router_port}", "--", "--lora-modules", f"poet={adapter}", "--max-lora-rank", "8",
             "--num-gpu-blocks-override", str(ENGINE_BLOCKS), "--max-model-len", "1024")  # fmt: skip
    with start(tmp_path_factory.mktemp("reporting"), *flags) as worker:
        yield worker


def prompt(seed: int, tokens: int) -> list[int]:
    """Any tokens; equal seeds share their beginning."""
    return random.Random(seed).choices(range(300, 1_000), k=tokens)


async def version_of(worker: VllmWorker) -> str:
    card = ModelCard.parse(await fetch_card(worker.address, worker.card_hash), worker.card_hash)
    return card.meta.version


def names(version: str, tokens: list[int], lora: str = "", salt: str = "") -> set[bytes]:
    """As a gateway computes them, for what fills blocks of the engine."""
    whole = tokens[: len(tokens) // ENGINE_BLOCK * ENGINE_BLOCK]
    return set(split(chain(root(version, lora, salt), whole)))


class Mirror:
    """What a router knows."""

    def __init__(self, router: FakeRouter) -> None:
        self.router = router
        self.held: set[bytes] = set()
        self.sequence = 0

    async def next(self) -> bool:
        """Take one message; whether a snapshot ended with it."""
        said = await self.router.blocks()
        self.sequence += 1
        assert said.sequence == self.sequence
        if said.snapshot_begin:
            self.held.clear()
        self.held |= set(split(said.stored))
        self.held -= set(split(said.removed))
        return said.snapshot_end

    async def until(self, wanted: set[bytes]) -> None:
        """Until all of it is held."""
        while not wanted <= self.held:
            await self.next()


async def ask(gateway: Attached, handle: int, tokens: list[int], lora: str = "", salt: str = "") -> int:
    """One answer; how many tokens vLLM found cached."""
    _, ended = await gateway.run(submit(handle, tokens, lora=lora, cache_salt=salt, sampling={"max_tokens": 2}))
    return ended.cached


async def test_our_names_of_vllms_blocks_are_the_gateways(reporting: VllmWorker, router_port: int) -> None:
    version = await version_of(reporting)
    kinds = [("", ""), ("poet", ""), ("", "secret"), ("poet", "secret"), ("", "poet"), ("poet", "poet")]
    tokens = prompt(1, 300)
    async with attached(reporting.address, reporting.incarnation) as gateway:
        for handle, (lora, salt) in enumerate(kinds):
            assert await ask(gateway, handle, tokens, lora, salt) == 0
        expected = set[bytes]().union(*(names(version, tokens, lora, salt) for lora, salt in kinds))
        async with fake_router(router_port) as (router, _):
            assert (await router.registration()).reports_blocks
            mirror = Mirror(router)
            while not await mirror.next():
                pass
            assert mirror.held == expected
            assert len(expected) == len(kinds) * 256 // BLOCK_TOKENS
            longer = tokens[:290] + prompt(2, 200)
            assert await ask(gateway, len(kinds), longer, "", "secret") == 256  # only the last block is new
            await mirror.until(names(version, longer, "", "secret"))
            assert mirror.held == expected | names(version, longer, "", "secret")


async def test_predictions_come_true_while_vllm_evicts(reporting: VllmWorker, router_port: int) -> None:
    """Prompts over the cache's size, in turn: before each, what the events say is what vLLM then finds."""
    version = await version_of(reporting)
    order = random.Random(3)
    hits = misses = 0
    async with (
        attached(reporting.address, reporting.incarnation) as gateway,
        fake_router(router_port) as (router, _),
    ):
        mirror = Mirror(router)
        while not await mirror.next():
            pass
        for handle in range(40):
            tokens = prompt(order.randrange(100, 110), order.choice((300, 520, 700)))
            chained = split(chain(root(version), tokens))
            held = next((at for at, name in enumerate(chained) if name not in mirror.held), len(chained))
            predicted = min(held * BLOCK_TOKENS, len(tokens) - 1) // ENGINE_BLOCK * ENGINE_BLOCK
            assert await ask(gateway, handle, tokens) == predicted
            hits, misses = hits + bool(predicted), misses + (not predicted)
            assert len(mirror.held) <= ENGINE_BLOCKS * ENGINE_BLOCK // BLOCK_TOKENS
            # What a later step stored comes after all that this one evicted.
            marker = prompt(1_000 + handle, ENGINE_BLOCK)
            assert await ask(gateway, 1_000 + handle, marker) == 0
            await mirror.until(names(version, marker))
    assert hits > 5
    assert misses > 5
