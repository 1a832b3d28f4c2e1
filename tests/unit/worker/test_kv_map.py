"""An engine's block events, mapped to our names; also when events are lost, doubled or strange."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from services.common.blocks import BLOCK_TOKENS, chain, root, split
from services.worker.blocks import BlockMirror
from services.worker.engine.kv_map import KvMap, Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from services.worker.engine.base import KvChange

SIZE = 32
"""Tokens of the engine's blocks: two of ours."""
VERSION = "v"


def ours(tokens: Sequence[int], lora: str = "", salt: str = "") -> list[bytes]:
    return split(chain(root(VERSION, lora, salt), tokens))


class Follower:
    """Takes the changes, as the worker's mirror does."""

    def __init__(self) -> None:
        self.held: set[bytes] = set()

    def take(self, change: KvChange) -> None:
        if change.snapshot:
            self.held.clear()
        assert not set(change.stored) & self.held
        self.held |= set(change.stored)
        assert set(change.removed) <= self.held
        self.held -= set(change.removed)


def test_blocks_have_the_names_that_a_gateway_gives_them() -> None:
    tokens = list(range(5 * SIZE))
    for lora, salt in (("", ""), ("poet", ""), ("", "secret"), ("poet", "secret")):
        blocks = KvMap(VERSION, blocks_max=10)
        blocks.stored(Stored([1, 2], None, tokens[: 2 * SIZE], SIZE, lora, salt))
        blocks.stored(Stored([b"c"], 2, tokens[2 * SIZE : 3 * SIZE], SIZE, lora))  # where the salt isn't told
        blocks.stored(Stored([4, 5], b"c", tokens[3 * SIZE :], SIZE, lora))
        assert blocks.take().stored == ours(tokens, lora, salt)
        assert blocks.unknown == 0
        blocks.removed([5, b"c"])
        gone = ours(tokens, lora, salt)
        assert blocks.take().removed == gone[8:] + gone[4:6]


def test_a_block_goes_with_its_last_copy() -> None:
    blocks = KvMap(VERSION, blocks_max=10)
    for _ in range(2):
        blocks.stored(Stored([1], None, range(SIZE), SIZE))
    assert len(blocks.take().stored) == SIZE // BLOCK_TOKENS
    blocks.removed([1])
    assert not blocks.take()
    blocks.removed([1])
    assert len(blocks.take().removed) == SIZE // BLOCK_TOKENS
    assert len(blocks) == 0


def test_what_cannot_be_named_is_counted_and_left_out() -> None:
    blocks = KvMap(VERSION, blocks_max=10)
    blocks.stored(Stored([1], 99, range(SIZE), SIZE))  # after a block that was never seen
    blocks.stored(Stored([2, 3], None, range(SIZE), SIZE))  # tokens for one only
    blocks.stored(Stored([4], None, range(24), 24))  # no multiple of 16
    blocks.stored(Stored([5], None, range(8), 8))
    blocks.removed([1, 2, 77])
    assert not blocks.take()
    assert blocks.unknown == 5


def test_more_blocks_than_there_can_be_void_everything() -> None:
    blocks = KvMap(VERSION, blocks_max=2)
    blocks.stored(Stored([1, 2], None, range(2 * SIZE), SIZE))
    blocks.take()
    blocks.stored(Stored([3], None, range(1, SIZE + 1), SIZE))
    change = blocks.take()
    assert change.snapshot
    assert not change.stored
    assert len(blocks) == 0


class Engine:
    """A cache that names its blocks as vLLM does and may hold several copies of one."""

    def __init__(self) -> None:
        self.copies: Counter[int] = Counter()
        self.names: dict[tuple[str, tuple[int, ...]], int] = {}
        self.paths: dict[int, tuple[str, tuple[int, ...]]] = {}

    def name(self, salt: str, tokens: tuple[int, ...]) -> int:
        name = self.names.setdefault((salt, tokens), len(self.names))
        self.paths[name] = (salt, tokens)
        return name

    def store(self, salt: str, tokens: tuple[int, ...], known: int) -> Stored:
        """All blocks of `tokens` after the first `known`."""
        ends = range((known + 1) * SIZE, len(tokens) + 1, SIZE)
        hashes = [self.name(salt, tokens[:end]) for end in ends]
        self.copies.update(hashes)
        parent = self.name(salt, tokens[: known * SIZE]) if known else None
        return Stored(hashes, parent, tokens[known * SIZE :], SIZE, salt="" if known else salt)

    def held(self) -> set[bytes]:
        out: set[bytes] = set()
        for name in +self.copies:
            salt, tokens = self.paths[name]
            out |= set(ours(tokens, salt=salt)[-(SIZE // BLOCK_TOKENS) :])
        return out


prompts = st.lists(st.integers(0, 2), min_size=1, max_size=3).map(lambda kinds: tuple(np.repeat(kinds, SIZE).tolist()))
stores = st.tuples(st.just("store"), st.sampled_from(["", "x"]), prompts, st.integers(0, 2))
removes = st.tuples(st.just("remove"), st.integers(0, 50))
noise = st.sampled_from([("clear",), ("take",)])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(stores, removes, noise), max_size=40))
def test_told_everything_it_knows_everything(happens: list[tuple[object, ...]]) -> None:
    engine, blocks, follower = Engine(), KvMap(VERSION, blocks_max=1_000), Follower()
    for action in happens:
        match action:
            case ("store", str(salt), tuple(tokens), int(wanted)):
                known = min(wanted, len(tokens) // SIZE - 1)
                present = all(engine.copies[engine.name(salt, tokens[: at * SIZE])] for at in range(1, known + 1))
                blocks.stored(engine.store(salt, tokens, known if present else 0))
            case ("remove", int(pick)) if +engine.copies:
                present_names = sorted(+engine.copies)
                name = present_names[pick % len(present_names)]
                engine.copies[name] -= 1
                blocks.removed([name])
            case ("clear",):
                engine.copies.clear()
                blocks.clear()
            case ("take",):
                follower.take(blocks.take())
    follower.take(blocks.take())
    assert follower.held == engine.held()
    assert len(blocks) == len(+engine.copies)


events = st.one_of(
    st.builds(
        Stored,
        st.lists(st.one_of(st.integers(0, 9), st.binary(max_size=2)), max_size=3),
        st.one_of(st.none(), st.integers(0, 9)),
        st.lists(st.integers(0, 2**32 - 1), max_size=96),
        st.sampled_from([0, 1, 8, 16, 24, 32]),
        salt=st.sampled_from(["", "x"]),
    ),
    st.lists(st.integers(0, 9), max_size=3),
    st.just("clear"),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(events, max_size=40), st.integers(1, 6))
def test_garbage_neither_breaks_nor_grows_it(happens: list[object], blocks_max: int) -> None:
    """Lost, doubled and made-up events."""
    blocks, mirror = KvMap(VERSION, blocks_max), BlockMirror()
    for event in happens:
        if isinstance(event, Stored):
            blocks.stored(event)
        elif isinstance(event, list):
            blocks.removed(event)
        else:
            blocks.clear()
        mirror.apply(blocks.take())
        assert len(blocks) <= blocks_max
        assert len(mirror.held) <= blocks_max * SIZE // BLOCK_TOKENS
