"""What the two servicers share: run a stream's tasks until the first of them is done, or the router ends it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from services.common.errors import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from services.router.hub import Ended


async def until_ended(ended: Ended, *parts: Coroutine[Any, Any, None]) -> None:
    """Run `parts` side by side until one returns or fails; the others are cancelled before this returns.

    Raises:
        UnavailableError: `ended` was set: the router ends the stream, and the peer may dial again.
        Exception: whatever a part raised.
    """
    tasks = [asyncio.ensure_future(part) for part in parts]
    waiter = asyncio.ensure_future(ended.wait())
    try:
        await asyncio.wait([*tasks, waiter], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (*tasks, waiter):
            task.cancel()
        await asyncio.wait([*tasks, waiter])
    for task in tasks:
        if not task.cancelled():
            task.result()
    if ended.is_set():
        raise UnavailableError(ended.detail)
