"""vLLM's own publisher and our end: what was missed is asked for, what is lost for good voids what was known."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from services.common.blocks import chain, root, split
from services.worker.blocks import BlockMirror
from services.worker.engine.kv_map import KvMap

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of vLLM's imports

SIZE = 16
VERSION = "v"


def tokens(number: int) -> list[int]:
    return list(range(number * SIZE, (number + 1) * SIZE))


def name(number: int, lora: str = "", salt: str = "") -> bytes:
    return chain(root(VERSION, lora, salt), tokens(number))


class Publisher:
    """vLLM's, with a replay buffer of 4 batches."""

    def __init__(self, folder: Path) -> None:
        from vllm.distributed.kv_events import ZmqEventPublisher

        self.vllm: Any = ZmqEventPublisher(
            data_parallel_rank=0, endpoint=f"ipc://{folder}/events", replay_endpoint=f"ipc://{folder}/replay",
            buffer_steps=4, topic="kv",
        )  # fmt: skip

    def publish(self, *events: Any) -> None:
        """One batch."""
        from vllm.distributed.kv_events import KVEventBatch

        self.vllm.publish(KVEventBatch(ts=0.0, events=list(events)))

    def lose(self, *events: Any) -> None:
        """A batch that vLLM sent and that nobody can get any more."""
        from vllm.distributed.kv_events import KVEventBatch

        published = self.vllm._pub
        self.vllm._event_queue.join()
        self.vllm._pub = _Deaf()
        try:
            self.vllm.publish(KVEventBatch(ts=0.0, events=list(events)))
            self.vllm._event_queue.join()
        finally:
            self.vllm._pub = published


class _Deaf:
    def send_multipart(self, _: object) -> None:
        """Say nothing."""

    def close(self, linger: int) -> None:
        """Nothing to close."""


def stored(number: int, lora: str | None = None, extra: Any = None, **fields: Any) -> Any:
    from vllm.distributed.kv_events import BlockStored

    values = {
        "block_hashes": [number], "parent_block_hash": None, "token_ids": tokens(number), "block_size": SIZE,
        "lora_id": None, "medium": "GPU", "lora_name": lora, "extra_keys": extra, "group_idx": 0,
    }  # fmt: skip
    return BlockStored(**(values | fields))


def removed(number: int, **fields: Any) -> Any:
    from vllm.distributed.kv_events import BlockRemoved

    return BlockRemoved(**({"block_hashes": [number], "medium": "GPU", "group_idx": 0} | fields))


@pytest.fixture
def publisher(tmp_path: Path) -> Iterator[Publisher]:
    made = Publisher(tmp_path)
    yield made
    made.vllm.shutdown()


class Following:
    """Our end, and what it knows."""

    def __init__(self, blocks: KvMap) -> None:
        self.blocks = blocks
        self.mirror = BlockMirror()
        self.snapshots = 0
        self._changed = asyncio.Event()

    async def run(self, changes: Any) -> None:
        """Take changes for ever."""
        async with contextlib.aclosing(changes):
            async for change in changes:
                self.snapshots += change.snapshot
                self.mirror.apply(change)
                self._changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        """Until it is so."""
        async with asyncio.timeout(20):
            while not condition():
                self._changed.clear()
                await self._changed.wait()


@contextlib.asynccontextmanager
async def following(folder: Path) -> AsyncIterator[Following]:
    from services.worker.engine.vllm_kv import KvSubscriber

    ours = Following(KvMap(VERSION, blocks_max=100))
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(ours.run(KvSubscriber(folder).changes(ours.blocks)))
        yield ours
        task.cancel()


async def test_what_came_before_we_listened_is_replayed(publisher: Publisher, tmp_path: Path) -> None:
    publisher.publish(stored(1), stored(2))
    publisher.publish(removed(1), stored(3))
    async with following(tmp_path) as ours:
        await ours.until(lambda: set(ours.mirror.held) == {name(2), name(3)})
        publisher.publish(stored(4))
        await ours.until(lambda: name(4) in ours.mirror.held)
        assert ours.snapshots == 0


async def test_a_gap_is_replayed(publisher: Publisher, tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        publisher.publish(stored(1))
        await ours.until(lambda: name(1) in ours.mirror.held)
        publisher.lose(removed(1), stored(2))
        publisher.publish(stored(3))
        await ours.until(lambda: name(3) in ours.mirror.held)
        assert set(ours.mirror.held) == {name(2), name(3)}
        assert ours.snapshots == 0


async def test_a_gap_at_the_end_is_found(publisher: Publisher, tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        publisher.publish(stored(1))
        await ours.until(lambda: name(1) in ours.mirror.held)
        publisher.lose(stored(2))  # and nothing after it
        await ours.until(lambda: name(2) in ours.mirror.held)


async def test_what_is_lost_for_good_voids_all_that_was_known(publisher: Publisher, tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        publisher.publish(stored(1))
        await ours.until(lambda: name(1) in ours.mirror.held)
        for number in range(2, 8):
            publisher.lose(stored(number))
        publisher.publish(stored(8), stored(9, parent_block_hash=2, token_ids=tokens(9)))
        await ours.until(lambda: name(8) in ours.mirror.held)
        assert set(ours.mirror.held) == {name(number) for number in (5, 6, 7, 8)}  # the buffer's, and the new
        assert ours.snapshots == 1
        assert ours.blocks.unknown == 1  # its parent was forgotten


async def test_only_the_accelerators_blocks_of_tokens_count(publisher: Publisher, tmp_path: Path) -> None:
    async with following(tmp_path) as ours:
        publisher.publish(
            stored(1, medium="CPU"), stored(2, group_idx=1), stored(3, extra=[[["image", 0]]]),
            stored(4, extra=[["salt"]]), stored(5, lora="poet", extra=[["poet", "poet"]]),
            stored(6, lora="poet", extra=[["poet"]]), stored(7, extra=[None]),
            stored(8, extra=[["salt"]], parent_block_hash=7),
        )  # fmt: skip
        publisher.publish(removed(4, medium="CPU"), removed(4, group_idx=1), stored(9))
        await ours.until(lambda: name(9) in ours.mirror.held)
        expected = {name(4, salt="salt"), name(5, "poet", "poet"), name(6, "poet"), name(7), name(9)}
        assert set(ours.mirror.held) == expected


async def test_what_cannot_be_read_voids_all_and_all_cleared_too(publisher: Publisher, tmp_path: Path) -> None:
    from vllm.distributed.kv_events import AllBlocksCleared

    async with following(tmp_path) as ours:
        publisher.publish(stored(1))
        await ours.until(lambda: name(1) in ours.mirror.held)
        publisher.publish({"type": "a newer event"})
        publisher.publish(stored(2))
        await ours.until(lambda: name(2) in ours.mirror.held)
        assert set(ours.mirror.held) == {name(2)}
        publisher.publish(AllBlocksCleared(), stored(3))
        await ours.until(lambda: name(3) in ours.mirror.held)
        assert set(ours.mirror.held) == {name(3)}
        assert split(b"".join(ours.mirror.held)) == [name(3)]


def test_events_are_msgpack_as_vllm_writes_them() -> None:
    from vllm.distributed.kv_events import KVEventBatch

    data = msgspec.msgpack.encode(KVEventBatch(ts=0.0, events=[stored(1), removed(1)]))
    assert msgspec.msgpack.decode(data, type=KVEventBatch).events == [stored(1), removed(1)]
