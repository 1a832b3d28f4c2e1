"""Fairness between tenants: virtual token counters.

Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): a tenant's counter grows by what was computed for
it, divided by its weight; the smallest counter goes first. A tenant that comes back is lifted to the smallest counter
of those that wait, so that idling earns no credit. What is charged at the grant is a prediction, which the end of the
lease corrects.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from typing import TYPE_CHECKING

from services.router.queue import TenantQueue

if TYPE_CHECKING:
    from services.router.requests import Request

PARKED_MAX = 4096
"""Tenants without a request whose debt is remembered; beyond, the smallest debts are forgiven."""
_WEIGHT_MIN, _WEIGHT_MAX = 1e-3, 1e3

Entry = tuple[float, int, int, "Account"]
"""Counter, when it was last served, number: the order of those that wait."""


class Account:
    """One tenant in one class of one model: its counter and its waiting requests."""

    __slots__ = ("book", "counter", "leases", "number", "parked", "queue", "served", "tenant", "waits", "weight")

    def __init__(self, book: Accounts, tenant: str, number: int) -> None:
        self.book = book
        self.tenant = tenant
        self.number = number
        self.counter = 0.0
        """Weighted tokens; never negative."""
        self.weight = 1.0
        self.queue = TenantQueue()
        self.leases = 0
        self.served = 0
        self.waits = False
        self.parked = False

    @property
    def entry(self) -> Entry:
        """Its place among those that wait."""
        return self.counter, self.served, self.number, self

    @property
    def idle(self) -> bool:
        """Nothing waits, nothing runs."""
        return not self.queue and not self.leases


class Accounts:
    """The tenants of one class of one model. Memory follows those that wait or run, and the bounded parked ones."""

    def __init__(self) -> None:
        self.active: list[Entry] = []
        """Those that wait, the next one first."""
        self._by_tenant: dict[str, Account] = {}
        self._parked: list[tuple[float, int, Account]] = []
        self._floor = 0.0
        self._last: Account | None = None
        self._numbers = 0
        self._served = 0

    def __len__(self) -> int:
        return len(self._by_tenant)

    def of(self, request: Request) -> Account:
        """The account of the request's tenant, opened if need be; its weight is that of the latest request."""
        account = self._by_tenant.get(request.tenant)
        if account is None:
            account = self._by_tenant[request.tenant] = self.new(request.tenant)
        account.weight = min(max(request.tenant_weight, _WEIGHT_MIN), _WEIGHT_MAX)
        return account

    def find(self, tenant: str) -> Account | None:
        """Its account, if it has one."""
        return self._by_tenant.get(tenant)

    def new(self, tenant: str) -> Account:
        """An account that `of` doesn't find."""
        self._numbers += 1
        return Account(self, tenant, self._numbers)

    def lift(self, account: Account) -> None:
        """No credit for the time without requests. The last one to leave stands for those that wait when none does."""
        base = self._base()
        if account.counter < base:
            account.counter = base

    def join(self, account: Account) -> None:
        """It waits from now on."""
        self.lift(account)
        account.waits = True
        insort(self.active, account.entry)

    def leave(self, account: Account) -> None:
        """It waits no more."""
        del self.active[bisect_left(self.active, account.entry)]
        account.waits = False
        if not self.active:
            self._last = account

    def granted(self, account: Account, tokens: float) -> None:
        """It got a lease: charge it, and put it behind its equals. One that never waited must be lifted before."""
        if not self.active:
            self._last = account
        self._served += 1
        self._move(account, tokens, self._served)

    def correct(self, account: Account, tokens: float) -> None:
        """A charge was too low by `tokens`; too high when they are negative."""
        self._move(account, tokens, account.served)

    def _move(self, account: Account, tokens: float, served: int) -> None:
        if account.waits:
            del self.active[bisect_left(self.active, account.entry)]
        account.counter = max(account.counter + tokens / account.weight, 0.0)
        account.served = served
        if account.waits:
            insort(self.active, account.entry)
        self._advance()

    def settle(self, account: Account) -> None:
        """Forget it if it is idle and owes nothing, remember its debt for a while if it does."""
        if not account.idle or account.parked or self._by_tenant.get(account.tenant) is not account:
            return
        if account.counter <= self._base():
            del self._by_tenant[account.tenant]
            return
        account.parked = True
        heapq.heappush(self._parked, (account.counter, account.number, account))
        if len(self._parked) > PARKED_MAX:
            self._unpark()

    def _base(self) -> float:
        if self.active:
            return self.active[0][0]
        return max(self._floor, self._last.counter) if self._last is not None else self._floor

    def _advance(self) -> None:
        """Forget parked debts that those who wait have caught up with."""
        base = self._base()
        if base > self._floor:
            self._floor = base
        while self._parked and self._parked[0][0] <= base:
            self._unpark()

    def _unpark(self) -> None:
        counter, _, account = heapq.heappop(self._parked)
        account.parked = False
        if not account.idle:
            return
        if account.counter > max(counter, self._base()) and len(self._parked) < PARKED_MAX:
            self.settle(account)
        elif self._by_tenant.get(account.tenant) is account:
            del self._by_tenant[account.tenant]
