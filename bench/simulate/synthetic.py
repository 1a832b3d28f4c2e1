"""Traces for those who have none, and of shapes that published ones lack. The same seed gives the same trace."""

from __future__ import annotations

import random
from itertools import count
from typing import TYPE_CHECKING

from bench.simulate.traces import BLOCK_TOKENS, Call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def chats(draw: random.Random, calls: int) -> list[Call]:
    """Conversations of several turns that grow by question and answer; eight system prompts of 1,024 tokens."""
    names, out = count(1_000), list[Call]()
    while len(out) < calls:
        at, system = draw.uniform(0.0, 600.0), draw.randrange(8)
        blocks, prompt = [2 * system, 2 * system + 1], 2 * BLOCK_TOKENS
        session = f"chat-{len(out)}"
        for _ in range(min(1 + int(draw.expovariate(0.25)), 16)):
            prompt += 1 + int(draw.lognormvariate(5.5, 1.0))
            output = 1 + int(draw.lognormvariate(5.0, 0.8))
            blocks = _extended(blocks, prompt, names)
            out.append(Call(at, prompt, output, tuple(blocks), session=session))
            at += draw.expovariate(1 / 25.0)
            prompt += output
    return out[:calls]


def agents(draw: random.Random, calls: int) -> list[Call]:
    """Tool loops: a long context that grows by thousands of tokens each few seconds, short answers."""
    names, out = count(1_000), list[Call]()
    while len(out) < calls:
        at, blocks, prompt = draw.uniform(0.0, 600.0), list[int](), 4_000
        for _ in range(draw.randrange(3, 25)):
            prompt += 200 + int(draw.lognormvariate(6.5, 1.0))
            blocks = _extended(blocks, prompt, names)
            out.append(Call(at, prompt, 20 + draw.randrange(150), tuple(blocks)))
            at += draw.expovariate(1 / 6.0)
            if prompt > 100_000:
                break
    return out[:calls]


def hot(draw: random.Random, calls: int) -> list[Call]:
    """Everybody shares the first 4,096 tokens, and half of the calls one of a few documents behind them."""
    names, out = count(100_000), list[Call]()
    for _ in range(calls):
        blocks, prompt = list(range(8)), 8 * BLOCK_TOKENS
        if draw.random() < 0.5:
            document = min(int(draw.paretovariate(1.1)), 200)
            blocks += range(1_000 + 16 * document, 1_016 + 16 * document)
            prompt += 16 * BLOCK_TOKENS
        prompt += 50 + int(draw.lognormvariate(6.0, 0.8))
        out.append(
            Call(draw.uniform(0.0, 600.0), prompt, 50 + draw.randrange(300), tuple(_extended(blocks, prompt, names)))
        )
    return out


def mixed(draw: random.Random, calls: int) -> list[Call]:
    """Short chats without common prefixes, and four in a hundred of 20,000 to 100,000 tokens."""
    names, out = count(1_000), list[Call]()
    for _ in range(calls):
        long = draw.random() < 0.04
        prompt = draw.randrange(20_000, 100_000) if long else 50 + draw.randrange(450)
        output = 20 + draw.randrange(100)
        out.append(Call(draw.uniform(0.0, 600.0), prompt, output, tuple(_extended([], prompt, names))))
    return out


SHAPES: dict[str, Callable[[random.Random, int], list[Call]]] = {
    "chats": chats,
    "agents": agents,
    "hot": hot,
    "mixed": mixed,
}


def generate(shape: str, calls: int, seed: int) -> list[Call]:
    """`calls` requests of one of SHAPES, in order of arrival."""
    return sorted(SHAPES[shape](random.Random(seed), calls), key=lambda call: call.at_s)


def _extended(blocks: list[int], prompt: int, names: Iterator[int]) -> list[int]:
    """Whole blocks stay; a last one that was not full is another one now."""
    kept = blocks[: prompt // BLOCK_TOKENS]
    return kept + [next(names) for _ in range(-(-prompt // BLOCK_TOKENS) - len(kept))]
