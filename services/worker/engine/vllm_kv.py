"""Follows vLLM's KV events, on its publisher and replay sockets (ZeroMQ, in this worker's own folder)."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import zmq
import zmq.asyncio
from vllm.config.kv_events import KVEventsConfig
from vllm.distributed.kv_events import MEDIUM_GPU, AllBlocksCleared, BlockRemoved, BlockStored, KVEventBatch

from services.worker.engine.kv_map import Stored

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from vllm.engine.arg_utils import AsyncEngineArgs

    from services.worker.engine.base import KvChange
    from services.worker.engine.kv_map import KvMap

log = logging.getLogger(__name__)

_TOPIC = "kv"
_REPLAY_S = 5.0
"""vLLM's publisher looks for replay requests every 0.1 s."""
_QUIET_S = 2.0
"""After so long without an event we ask whether one was missed: a subscription begins some time after it is made."""
_REPLAY_END = (-1).to_bytes(8, "big", signed=True)
_PATH_MAX = 100
"""A Unix socket's path has at most 107 bytes."""


class KvSubscriber:
    """The end of vLLM's event stream that is ours."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._events, self._replay = (f"ipc://{folder}/{name}" for name in ("events", "replay"))
        self._decode = msgspec.msgpack.Decoder(KVEventBatch).decode
        self._next = 0

    @classmethod
    def of(cls, args: AsyncEngineArgs) -> KvSubscriber | None:
        """Make vLLM publish, by `args`; None, with a line in the log, when it can't or the user has other wishes."""
        if args.kv_events_config is not None:
            log.warning("no KV events for the routers: --kv-events-config sends them elsewhere")
            return None
        if args.data_parallel_size > 1:
            log.warning("no KV events for the routers: vLLM's data parallelism splits them; run more workers instead")
            return None
        folder = tempfile.mkdtemp(prefix="kv-", dir=os.environ.get("VLLM_RPC_BASE_PATH"))
        if len(os.fsencode(folder)) > _PATH_MAX:  # of an unusual TMPDIR
            shutil.rmtree(folder)
            log.warning("no KV events for the routers: the path of the temporary folder is too long for a socket")
            return None
        subscriber = cls(Path(folder))
        args.kv_events_config = KVEventsConfig(
            enable_kv_cache_events=True, publisher="zmq", topic=_TOPIC,
            endpoint=subscriber._events, replay_endpoint=subscriber._replay,
        )  # fmt: skip
        return subscriber

    def close(self) -> None:
        """It is not needed."""
        shutil.rmtree(self._folder, ignore_errors=True)

    async def changes(self, blocks: KvMap) -> AsyncGenerator[KvChange, None]:
        """What `blocks` makes of the events, from vLLM's first."""
        with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as events:
            events.set_hwm(0)  # vLLM's own bound is what counts; a gap is asked for again
            events.connect(self._events)
            events.subscribe(_TOPIC.encode())
            await self._catch_up(context, blocks)  # what came before we listened
            while True:
                if change := blocks.take():
                    yield change
                try:
                    async with asyncio.timeout(_QUIET_S):
                        _, number, payload = await events.recv_multipart()
                except TimeoutError:
                    await self._catch_up(context, blocks)  # a gap at the end shows nowhere else
                    continue
                sequence = int.from_bytes(number, "big")
                if sequence > self._next:
                    await self._catch_up(context, blocks)
                self._take(sequence, payload, blocks)

    async def _catch_up(self, context: zmq.asyncio.Context, blocks: KvMap) -> None:
        """Ask for what was missed; forget everything when vLLM has it no more."""
        with context.socket(zmq.DEALER) as replay:
            replay.linger = 0
            replay.connect(self._replay)
            await replay.send_multipart([b"", self._next.to_bytes(8, "big")])
            try:
                async with asyncio.timeout(_REPLAY_S):
                    while True:
                        _, _, number, payload = await replay.recv_multipart()
                        if number == _REPLAY_END:
                            return
                        self._take(int.from_bytes(number, "big"), payload, blocks)
            except TimeoutError:
                log.warning("vLLM did not replay KV events; what is missing shows as a gap", extra={"next": self._next})

    def _take(self, sequence: int, payload: bytes, blocks: KvMap) -> None:
        if sequence < self._next:
            return
        if sequence > self._next:
            log.warning("KV events were lost", extra={"expected": self._next, "got": sequence})
            blocks.clear()
        self._next = sequence + 1
        try:
            batch = self._decode(payload)
        except msgspec.MsgspecError as error:
            log.error("KV events can't be read", extra={"reason": str(error)})
            blocks.clear()
            return
        for event in batch.events:
            _apply(event, blocks)


def _apply(event: Any, blocks: KvMap) -> None:
    """Only the accelerator's blocks of the first cache group: a prompt is no hit where that has none."""
    if isinstance(event, AllBlocksCleared):
        blocks.clear()
    elif event.medium not in (None, MEDIUM_GPU) or event.group_idx:
        return
    elif isinstance(event, BlockRemoved):
        blocks.removed(event.block_hashes)
    elif isinstance(event, BlockStored):
        lora = event.lora_name or ""
        salt = _salt(event, lora)
        if salt is None:
            blocks.unknown += len(event.block_hashes)
        else:
            blocks.stored(
                Stored(event.block_hashes, event.parent_block_hash, event.token_ids, event.block_size, lora, salt)
            )


def _salt(event: BlockStored, lora: str) -> str | None:
    """`extra_keys` hold the adapter's name, and for a prompt's first block the salt; None = they hold more."""
    keys = [_without(keys or (), lora) for keys in event.extra_keys or ()]
    first = keys.pop(0) if keys and event.parent_block_hash is None else []
    if any(keys) or len(first) > 1 or not all(isinstance(key, str) for key in first):
        return None  # images and the like, which our hashes don't cover
    return first[0] if first else ""


def _without(keys: Sequence[Any], lora: str) -> list[Any]:
    rest = list(keys)
    if lora and lora in rest:
        rest.remove(lora)
    return rest
