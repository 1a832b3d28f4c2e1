"""The waiting requests of one class of one model, in fair order between tenants."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from services.router.accounts import Account, Accounts, Entry
from services.router.drain_rate import DrainRate, RetryAfter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from services.router.config import SchedulerConfig
    from services.router.requests import Request

Turn = tuple["Request", tuple[Account, ...]]
"""A waiting request, and the accounts that its grant is charged to."""
_TENANT_SHARE = 8
"""A tenant may fill the queue as long as it has at most so many times the room that is left (a dynamic threshold,
Choudhury and Hahne 1998): one that floods gets 8/9 of the queue, and who comes after it still finds a place."""


class Lane:
    """One class. `promoted` is how it stands, as one tenant, in the class above while it starves there."""

    def __init__(self, config: SchedulerConfig, above: Lane | None) -> None:
        self._config = config
        self._above = above
        self.accounts = Accounts()
        self.count = 0
        self.tokens = 0
        """Prompt and answer tokens of all that wait."""
        self.rate = DrainRate()
        self.retry_after = RetryAfter()
        self.asked_at = -math.inf
        """The latest arrival."""
        self.promoted: Account | None = None
        if above is not None:
            self.promoted = above.accounts.new("")
            self.promoted.weight = config.promoted_weight
        self._ages: list[tuple[float, int, Request]] = []

    def asked(self, now: float) -> None:
        """A request arrived, whatever becomes of it."""
        self.asked_at = now

    def push(self, request: Request) -> None:
        """It waits."""
        config, account = self._config, self.accounts.of(request)
        horizon_s = config.deadline_horizon_s
        request.due = request.arrived + horizon_s
        if request.deadline < math.inf:
            request.due = min(request.due, request.deadline)
        else:
            request.due += min(config.patience * request.work_s, config.patience_s_max)
        request.cost = cost_of(config, request.prompt_tokens, request.answer_tokens)
        request.account = account
        account.queue.push(request)
        if len(account.queue) == 1:
            self.accounts.join(account)
        self.count += 1
        self.tokens += request.tokens
        request.waiting = True
        heapq.heappush(self._ages, (request.arrived, request.order, request))

    def remove(self, request: Request) -> None:
        """It waits no more."""
        account = request.account
        if account is None:
            raise ValueError("the request doesn't wait")
        account.queue.remove(request)
        if not account.queue:
            self.accounts.leave(account)
        self.count -= 1
        self.tokens -= request.tokens
        request.waiting, request.account = False, None
        self.accounts.settle(account)
        self._trim_ages()

    def has_no_place(self, request: Request) -> int | None:
        """None when it may wait; else how many tokens must leave first, 0 = a place, not tokens."""
        config, count = self._config, self.count
        account = self.accounts.find(request.tenant)
        mine = len(account.queue) if account is not None else 0
        left = config.queue_requests_max - count
        if left <= 0 or mine >= _TENANT_SHARE * left:
            return 0
        excess = self.tokens + request.tokens - config.queue_tokens_max
        return excess if count and excess > 0 else None

    def ahead(self, request: Request) -> int:
        """About how many of this lane will be granted before `request`, which waits or is about to.

        Exact for one tenant; between tenants from their counters and mean costs. Looks at each tenant that waits.
        """
        account = request.account
        if account is None:
            account = self.accounts.find(request.tenant)
            mine = len(account.queue) if account is not None else 0
        else:
            mine = account.queue.ahead(request)
        active = self.accounts.active
        if not active or (len(active) == 1 and active[0][3] is account):
            return mine
        start = active[0][0]
        if account is not None:
            start = max(start, account.counter)
            if mine:
                start += mine * account.queue.cost / len(account.queue) / account.weight
        before = mine
        for counter, _, _, other in active:
            if counter > start:
                break
            if other is not account:
                queue = other.queue
                waiting = len(queue)
                before += min(waiting, math.ceil((start - counter) * other.weight * waiting / (queue.cost + 1e-9)))
        return before

    def starved(self, now: float, after_s: float) -> bool:
        """Its oldest request has waited longer than that."""
        ages = self._ages
        while ages and not ages[0][2].waiting:
            heapq.heappop(ages)
        return bool(ages) and now - ages[0][0] > after_s

    def promote(self, now: float, after_s: float) -> None:
        """Stand in the class above while starved, and only then."""
        if self._above is None or self.promoted is None:
            return
        starved = self.starved(now, after_s)
        if starved is not self.promoted.waits:
            accounts = self._above.accounts
            (accounts.join if starved else accounts.leave)(self.promoted)

    def walk(self, below: Iterator[Turn]) -> Iterator[Turn]:
        """All that wait here in the order in which they would be granted, were all equally placeable.

        Tenants by counter, each raised by the cost of what was already passed. `below` is the walk of the lane below,
        for when that one stands here too.
        """
        active, at, later = self.accounts.active, 0, list[tuple[Entry, int]]()
        while at < len(active) or later:
            if later and (at >= len(active) or later[0][0] < active[at]):
                entry, index = heapq.heappop(later)
            else:
                entry, index = active[at], 0
                at += 1
            account = entry[3]
            queue = account.queue
            if queue:
                request, cost = queue[index], queue[index].cost
                yield request, (account,)
                more = index + 1 < len(queue)
            else:
                turn = next(below, None)
                if turn is None:
                    continue
                request, others = turn
                cost = request.cost
                yield request, (*others, account)
                more = True
            if more:
                heapq.heappush(later, ((entry[0] + cost / account.weight, *entry[1:]), index + 1))

    def __iter__(self) -> Iterator[Request]:
        """All that wait here, by tenant."""
        for entry in self.accounts.active:
            yield from entry[3].queue

    def _trim_ages(self) -> None:
        if len(self._ages) > 64 + 2 * self.count:
            self._ages = [entry for entry in self._ages if entry[2].waiting]
            heapq.heapify(self._ages)


def cost_of(config: SchedulerConfig, prompt_tokens: int, answer_tokens: int) -> float:
    """Weighted tokens of a request: what of its prompt is computed, and its answers."""
    return max(prompt_tokens, 1) + config.output_weight * answer_tokens
