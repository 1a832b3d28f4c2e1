"""What the two servicers share: run a stream's tasks until the first of them is done, or the router ends it."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any

from services.common.errors import PenstockError, UnavailableError
from services.common.rpc import abort

if TYPE_CHECKING:
    from collections.abc import Coroutine

    import grpc.aio

    from services.router.hub import Ended

_REFUSE_S = 1.0


async def refuse(context: grpc.aio.ServicerContext[Any, Any], error: PenstockError) -> None:
    """End the call with the error's status.

    A peer that doesn't read gets the status behind what it left unread; the handler doesn't wait for that.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_REFUSE_S):
            await abort(context, error)


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
