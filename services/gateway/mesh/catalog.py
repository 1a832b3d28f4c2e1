"""What models the mesh serves: cards fetched by hash from the workers that routers name, parsed once."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc.aio
from penstock.v1 import engine_pb2, engine_pb2_grpc

from services.common import rpc
from services.common.card import CARD_BYTES_MAX, CardError, ModelCard
from services.common.errors import DeadlineError, NotFoundError, UnavailableError
from services.gateway.mesh.backoff import Backoff
from services.gateway.text.models import TextModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.v1 import dispatch_pb2

log = logging.getLogger(__name__)

FETCH_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Entry:
    """One served name."""

    name: str
    card_hash: str = ""
    holders: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Router -> addresses of the live workers that it knows."""
    text: TextModel | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    """Unix time at which this gateway first heard of it, in seconds."""

    @property
    def workers(self) -> list[str]:
        """Addresses of live workers, by any router's word."""
        return sorted({address for addresses in self.holders.values() for address in addresses})


class Catalog:
    """Served names and their text models."""

    def __init__(self, on_change: Callable[[], None], *, no_worker_wait_s: float) -> None:
        self._on_change = on_change
        self._no_worker_wait_s = no_worker_wait_s
        self._adopted = asyncio.Event()
        self._entries: dict[str, Entry] = {}
        self._by_hash: dict[str, TextModel] = {}
        self._fetching: dict[str, asyncio.Task[None]] = {}
        self._tasks: asyncio.TaskGroup | None = None

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """The owner of the fetches."""
        self._tasks = tasks

    def on_update(self, router: str, update: dispatch_pb2.ModelUpdate) -> None:
        """A router tells what it knows of a model. A model that lost its workers keeps its card."""
        entry = self._entries.setdefault(update.model, Entry(update.model))
        entry.holders[router] = tuple(update.workers)
        if update.card_hash:
            entry.card_hash = update.card_hash
        known = self._by_hash.get(entry.card_hash)
        if known is not None:
            entry.text = known
        elif entry.workers and entry.card_hash not in self._fetching and self._tasks is not None:
            fetch = self._tasks.create_task(self._fetch(entry.card_hash), name=f"card-{entry.card_hash}")
            self._fetching[entry.card_hash] = fetch

    def on_router_lost(self, router: str) -> None:
        """What it said of workers counts no more."""
        for entry in self._entries.values():
            entry.holders.pop(router, None)

    @property
    def ready(self) -> bool:
        """At least one model can be tokenized for."""
        return bool(self._by_hash)

    def entries(self) -> list[Entry]:
        """Models with a card, by name."""
        return sorted((entry for entry in self._entries.values() if entry.text is not None), key=lambda e: e.name)

    async def get(self, model: str, deadline: float | None = None) -> TextModel:
        """The text side of a model, waiting for its first worker and the fetch of its card.

        Raises:
            DeadlineError: `deadline` (event-loop time) passed meanwhile.
            NotFoundError: nobody serves that name; says which names there are.
            UnavailableError: it is known but its card could not be fetched yet.
        """
        entry = self._entries.get(model)
        if entry is None:
            names = ", ".join(each.name for each in self.entries()) or "none yet"
            raise NotFoundError(
                f"the model {model!r} does not exist; this mesh serves: {names}", param="model", code="model_not_found"
            )
        if entry.text is None:
            return await self._first_card(entry, deadline)
        return entry.text

    async def _first_card(self, entry: Entry, deadline: float | None) -> TextModel:
        patience_s = FETCH_TIMEOUT_S if entry.card_hash in self._fetching else self._no_worker_wait_s
        left_s = patience_s if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            async with asyncio.timeout(min(patience_s, left_s)):
                while entry.text is None:
                    await self._adopted.wait()
        except TimeoutError:
            if left_s < patience_s:
                raise DeadlineError(f"the deadline passed while {entry.name!r} waited for its first worker") from None
            raise UnavailableError(f"no worker serves {entry.name!r} yet", retry_after_s=5) from None
        return entry.text

    async def _fetch(self, card_hash: str) -> None:
        backoff = Backoff()
        try:
            while True:
                addresses = self._holders(card_hash)
                if not addresses:
                    return  # the next update with workers starts over
                for address in addresses:
                    try:
                        text = await self._fetch_from(address, card_hash)
                    except (grpc.aio.AioRpcError, CardError, TimeoutError) as error:
                        log.warning("model card not fetched", extra={"worker": address, "reason": str(error)})
                        continue
                    except Exception:  # files of a worker that nobody foresaw must not end the gateway
                        log.exception("model card not usable", extra={"worker": address})
                        continue
                    self._adopt(card_hash, text)
                    return
                await asyncio.sleep(backoff.next_s())
        finally:
            self._fetching.pop(card_hash, None)

    def _holders(self, card_hash: str) -> list[str]:
        return sorted({a for entry in self._entries.values() if entry.card_hash == card_hash for a in entry.workers})

    def _adopt(self, card_hash: str, text: TextModel) -> None:
        self._by_hash[card_hash] = text
        for entry in self._entries.values():
            if entry.card_hash == card_hash:
                entry.text = text
        used = {entry.card_hash for entry in self._entries.values()}
        self._by_hash = {key: value for key, value in self._by_hash.items() if key in used}
        self._adopted.set()
        self._adopted = asyncio.Event()
        self._on_change()
        log.info("model card ready", extra={"card": card_hash, "model": text.meta.model})

    async def _fetch_from(self, address: str, card_hash: str) -> TextModel:
        files: dict[str, bytearray] = {}
        name, size = "", 0
        async with asyncio.timeout(FETCH_TIMEOUT_S), rpc.channel(address) as channel:
            request = engine_pb2.FetchModelCardRequest(card_hash=card_hash)
            async for piece in engine_pb2_grpc.EngineStub(channel).FetchModelCard(request):
                name = piece.file or name
                size += len(piece.data)
                if size > CARD_BYTES_MAX:
                    raise CardError(f"the card is over {CARD_BYTES_MAX} bytes")
                files.setdefault(name, bytearray()).extend(piece.data)
        card = ModelCard.parse({key: bytes(value) for key, value in files.items()}, card_hash)
        return await asyncio.to_thread(TextModel.from_card, card)
