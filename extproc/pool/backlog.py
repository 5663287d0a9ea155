"""How many prompt tokens wait to be computed on each endpoint: a prediction, put right again and again.

Engines compute prompts in the order in which they come. So an endpoint is predicted to be free at the later
of now and its last prediction, plus the new prompt's tokens over their speed. Two things are known
for sure and put the prediction right:

- a response has ended: its prompt and all before it are computed, what was sent after it may not be;
- the engine reports how many requests wait: just the last so many are not begun, and at most one more is
  being computed.

Speed is what the engines' counters say: tokens computed and requests begun over the seconds in which they
prefilled. It only bridges the time between two reports, so it may be wrong by a factor of two. The engines of
a pool are taken to be alike: one by one they would seem fast or slow by the requests that they happened to
get. One that is slower has more requests waiting, and that it reports.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from extproc.pool.reports import EngineReport

UNKNOWN_SPEED = 8000.0
"""Tokens per second before engines have said anything: a 70B model on four or eight GPUs."""
REQUEST_TOKENS = 256.0
"""What a request costs beside its tokens, as tokens: scheduling, launch, sampling, its share of decoding."""
KNOWN_AS_S = 1.0
"""Seconds of prefill that the speed assumed at first weighs as much as."""
FORGET_AFTER_S = 600.0
"""Seconds of prefill, over all engines, after which older ones count half: speed changes with the traffic."""
TYPICAL_OVER = 200
"""Requests over which the mean of tokens to compute is taken."""
MOST_WORKS = 1024
"""Prompts that are remembered per endpoint, about 150 bytes each; an engine batches 256 by default."""


class Work:
    """One prompt on an endpoint's list."""

    __slots__ = ("address", "at", "done", "tokens")

    def __init__(self, address: str, tokens: float, at: float) -> None:
        self.address = address
        self.tokens = tokens
        self.at = at
        self.done = False


class _Endpoint:
    __slots__ = ("report", "reported_at", "works")

    def __init__(self) -> None:
        self.works: deque[Work] = deque()
        self.report: EngineReport | None = None
        self.reported_at = -np.inf


class Backlogs:
    """The prompts sent to the endpoints of one pool and perhaps not yet computed.

    Times are seconds of one clock. Arrays are in the order of the last `set_addresses`.
    """

    def __init__(self) -> None:
        self.typical = REQUEST_TOKENS
        """Mean of what lately sent requests cost, tokens: to be computed, and `REQUEST_TOKENS`."""
        self._sent = 0
        self._computed = UNKNOWN_SPEED * KNOWN_AS_S
        self._prefilled = KNOWN_AS_S
        self.speed = UNKNOWN_SPEED
        """Prompt tokens per second of an endpoint."""
        self._endpoints: dict[str, _Endpoint] = {}
        self._index: dict[str, int] = {}
        self._free_at = np.zeros(0)

    def set_addresses(self, addresses: tuple[str, ...]) -> None:
        """These are the pool's endpoints. Of those that stay all is kept, of those that left nothing."""
        before, free_at = self._index, self._free_at
        self._index = {address: index for index, address in enumerate(addresses)}
        self._endpoints = {address: self._endpoints.get(address) or _Endpoint() for address in addresses}
        self._free_at = np.zeros(len(addresses))
        for address, index in self._index.items():
            if address in before:
                self._free_at[index] = free_at[before[address]]

    def tokens(self, now: float) -> NDArray[np.float64]:
        """Tokens predicted to wait on each endpoint at `now`."""
        left = self._free_at - now
        np.maximum(left, 0.0, out=left)
        left *= self.speed
        return left

    def add(self, address: str, tokens: float, at: float) -> Work:
        """A prompt was sent to `address` at `at`, of which this many tokens have to be computed.

        It may come late, from another replica; what was sent before the last report is in that report
        already. An address that is not in the pool has no backlog.
        """
        work = Work(address, tokens + REQUEST_TOKENS, at)
        self._sent += 1
        self.typical += (work.tokens - self.typical) / min(self._sent, TYPICAL_OVER)
        endpoint = self._endpoints.get(address)
        if endpoint is None:
            return work
        works, index = endpoint.works, self._index[address]
        if not works or works[-1].at <= at:
            works.append(work)
        else:
            position = next(place for place, one in enumerate(works) if one.at > at)
            works.insert(position, work)
        if len(works) > MOST_WORKS:
            works.popleft().done = True
        if at > endpoint.reported_at:
            free_at = max(self._free_at.item(index), at)
            self._free_at[index] = free_at + work.tokens / self.speed
        return work

    def ended(self, work: Work, now: float) -> None:
        """The response to this prompt has ended: engines had computed it and all before it."""
        if work.done:
            return
        endpoint = self._endpoints.get(work.address)
        if endpoint is None or work not in endpoint.works:
            return
        works = endpoint.works
        while True:
            first = works.popleft()
            first.done = True
            if first is work:
                break
        self._not_after(work.address, now, sum(one.tokens for one in works))

    def dropped(self, work: Work, now: float) -> None:
        """The request was given up before a response, or went elsewhere: it is not computed, and nothing is
        known of those before it."""
        endpoint = self._endpoints.get(work.address)
        if work.done or endpoint is None or work not in endpoint.works:
            return
        work.done = True
        endpoint.works.remove(work)
        index = self._index[work.address]
        shorter = self._free_at.item(index) - work.tokens / self.speed
        self._free_at[index] = max(shorter, min(now, self._free_at.item(index)))

    def reported(self, address: str, report: EngineReport, now: float) -> None:
        """The engine at `address` was read at `now`.

        Waiting requests that are not on the list came from elsewhere: they count as typical ones.
        """
        endpoint = self._endpoints.get(address)
        if endpoint is None:
            return
        self._observe(endpoint.report, report)
        endpoint.report, endpoint.reported_at = report, now
        works, waiting = endpoint.works, max(0, report.waiting)
        while len(works) > waiting + 1:
            works.popleft().done = True
        most = sum(work.tokens for work in works) + max(0, waiting - len(works)) * self.typical
        least = most - (works[0].tokens if len(works) > waiting else 0.0)
        index = self._index[address]
        speed = self.speed
        self._free_at[index] = min(max(self._free_at.item(index), now + least / speed), now + most / speed)

    def _observe(self, before: EngineReport | None, report: EngineReport) -> None:
        if before is None:
            return
        seconds = report.prefill_s - before.prefill_s
        tokens = report.computed_tokens - before.computed_tokens
        prefills = report.prefills - before.prefills
        # Counters that fell are those of an engine that began anew.
        if seconds <= 0.0 or tokens < 0.0 or prefills < 0:
            return
        keep = 0.5 ** (seconds / FORGET_AFTER_S)
        self._computed = keep * self._computed + tokens + REQUEST_TOKENS * prefills
        self._prefilled = keep * self._prefilled + seconds
        self.speed = max(1.0, self._computed / self._prefilled)

    def _not_after(self, address: str, now: float, tokens: float) -> None:
        index = self._index[address]
        latest = now + tokens / self.speed
        if self._free_at.item(index) > latest:
            self._free_at[index] = latest
