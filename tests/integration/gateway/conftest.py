"""Gateways run on uvloop, as in production: its transports pause and resume in their own way."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
import uvloop

from tests.integration.gateway.doors import running_gateway
from tests.integration.gateway.peers import running_peers

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path
    from typing import Any

    from tests.integration.gateway.doors import Door
    from tests.integration.gateway.peers import FakeRouter, FakeWorker


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"uvloop": uvloop.new_event_loop}


class Scene:
    """A gateway with scripted peers."""

    def __init__(self, door: Door, routers: list[FakeRouter], workers: list[FakeWorker]) -> None:
        self.door, self.routers, self.workers = door, routers, workers
        self.router, self.worker = routers[0], workers[0]


class Stage:
    """Makes scenes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @asynccontextmanager
    async def __call__(self, *, workers: int = 1, routers: int = 1, **settings: Any) -> AsyncIterator[Scene]:
        async with (
            running_peers(workers, routers) as (fake_routers, fake_workers),
            running_gateway(self._folder, [router.address for router in fake_routers], **settings) as door,
        ):
            yield Scene(door, fake_routers, fake_workers)


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """`async with stage(workers=2, slow_client_s=1.0) as scene`."""
    return Stage(tmp_path)
