"""Leases: one leads, the others wait, somebody always leads in the end."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.cache import leases as module
from services.cache.leases import Leases

KEY = b"k" * 16
LONG_S = 1000.0


async def until(leases: Leases, waiting: int) -> None:
    """Let tasks run until so many wait."""
    for _ in range(1000):
        if leases._waiting == waiting:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{leases._waiting} wait, not {waiting}")


def waiter(leases: Leases, owner: bytes, order: list[bytes]) -> asyncio.Task[bool]:
    async def wait() -> bool:
        ended = await leases.wait(KEY, deadline=leases._clock() + LONG_S)
        order.append(owner)
        return ended

    return asyncio.ensure_future(wait())


async def test_one_leads_and_may_ask_again() -> None:
    leases = Leases()
    assert await leases.acquire(KEY, b"a", LONG_S)
    assert not await leases.acquire(KEY, b"b", LONG_S)
    assert await leases.acquire(KEY, b"a", LONG_S)


async def test_a_value_lets_all_go() -> None:
    leases, order = Leases(), list[bytes]()
    await leases.acquire(KEY, b"a", LONG_S)
    tasks = [waiter(leases, bytes([number]), order) for number in range(5)]
    await until(leases, 5)
    leases.fulfilled(KEY)
    assert await asyncio.gather(*tasks) == [True] * 5
    assert len(leases) == 0


async def test_a_leader_that_gives_up_is_followed_by_the_one_that_waits_longest() -> None:
    leases, order = Leases(), list[bytes]()
    await leases.acquire(KEY, b"a", LONG_S)
    tasks = [waiter(leases, bytes([number]), order) for number in range(3)]
    await until(leases, 3)
    for left in (2, 1, 0):
        assert await leases.release(KEY, b"a")
        await until(leases, left)
        assert await leases.acquire(KEY, b"a", LONG_S)
    await asyncio.gather(*tasks)
    assert order == [b"\0", b"\1", b"\2"]


async def test_a_waiter_that_leaves_when_it_is_its_turn_passes_it_on() -> None:
    leases, order = Leases(), list[bytes]()
    await leases.acquire(KEY, b"a", LONG_S)
    first, second = waiter(leases, b"1", order), waiter(leases, b"2", order)
    await until(leases, 2)
    await leases.release(KEY, b"a")
    first.cancel()
    assert await second
    assert order == [b"2"]
    with pytest.raises(asyncio.CancelledError):
        await first
    assert len(leases) == 0


async def test_nobody_releases_what_is_anothers() -> None:
    leases = Leases()
    await leases.acquire(KEY, b"a", LONG_S)
    assert not await leases.release(KEY, b"b")
    assert not await leases.acquire(KEY, b"b", LONG_S)
    assert await leases.renew([(KEY, b"b"), (b"other" * 4, b"a")], LONG_S) == 0
    assert await leases.renew([(KEY, b"a")], LONG_S) == 1


async def test_a_lease_without_renewal_ends() -> None:
    now = [100.0]
    leases = Leases(clock=lambda: now[0])
    await leases.acquire(KEY, b"a", 5)
    now[0] += 4
    await leases.renew([(KEY, b"a")], 5)
    now[0] += 4
    assert not await leases.acquire(KEY, b"b", 5)
    now[0] += 2
    assert await leases.wait(KEY, now[0] + 10)
    assert await leases.acquire(KEY, b"b", 5)


async def test_waiting_ends_at_the_deadline() -> None:
    leases = Leases()
    await leases.acquire(KEY, b"a", LONG_S)
    assert not await leases.wait(KEY, leases._clock())


async def test_the_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEASES_MAX", 2)
    now = [100.0]
    leases = Leases(clock=lambda: now[0])
    for number in range(4):
        assert await leases.acquire(bytes([number]) * 16, b"a", 5), "unprotected, but not refused"
    assert len(leases) == 2
    now[0] += 6
    assert await leases.acquire(b"n" * 16, b"a", 5)
    assert len(leases) == 1


async def test_waiters_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WAITERS_MAX", 0)
    leases = Leases()
    await leases.acquire(KEY, b"a", LONG_S)
    assert not await leases.wait(KEY, leases._clock() + LONG_S)


class Crowd:
    """Owners that queue for one key."""

    def __init__(self) -> None:
        self.leases = Leases()
        self.leader: int | None = None
        self.waiting: dict[int, asyncio.Task[int]] = {}

    async def _queue(self, who: int) -> int:
        while not await self.leases.acquire(KEY, bytes([who]), LONG_S):
            await self.leases.wait(KEY, self.leases._clock() + LONG_S)
        return who

    async def step(self, verb: str, who: int) -> None:
        """One thing happens, and all that follows from it."""
        if verb == "acquire" and who != self.leader and who not in self.waiting:
            self.waiting[who] = asyncio.ensure_future(self._queue(who))
        elif verb == "release" and self.leader is not None:
            await self.leases.release(KEY, bytes([self.leader]))
            self.leader = None
        elif verb == "cancel" and who in self.waiting:
            self.waiting.pop(who).cancel()
        elif verb == "put":
            self.leases.fulfilled(KEY)
            self.leader = None
        for _ in range(10):
            await asyncio.sleep(0)

    def new_leaders(self) -> list[int]:
        """Who leads since the last step."""
        return [who for who, task in list(self.waiting.items()) if task.done() and self.waiting.pop(who)]


@given(st.lists(st.tuples(st.sampled_from(["acquire", "release", "cancel", "put"]), st.integers(0, 4)), max_size=40))
async def test_at_most_one_leads_and_nobody_waits_for_nobody(steps: list[tuple[str, int]]) -> None:
    crowd = Crowd()
    for verb, who in steps:
        await crowd.step(verb, who)
        led = crowd.new_leaders()
        assert len(led) + (crowd.leader is not None) <= 1
        crowd.leader = led[0] if led else crowd.leader
        assert crowd.leader is not None or not crowd.waiting
    for task in crowd.waiting.values():
        task.cancel()
    await asyncio.gather(*crowd.waiting.values(), return_exceptions=True)
