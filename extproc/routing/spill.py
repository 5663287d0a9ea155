"""When a request leaves its one first choice, by prefix length or by load, and where it goes then.

A request leaves its first choice when that endpoint's in-flight count has reached the bound, the smallest
of

- the concurrency threshold, which the user sets to what one engine runs at once without queueing;
- with balance on: max(factor x (total + 1) / N, floor), total and N over the eligible endpoints;
- with shedding on: the count from which an endpoint takes no more.

It goes to the next endpoint in HRW order under the bound, so that the overflow of a prefix meets its own
blocks again; when none is under it, to the least busy, ties in HRW order; when that one is full too,
nowhere.

The balance half is consistent hashing with bounded loads (Mirrokni, Thorup, Zadimoghaddam, SODA 2018) with
an absolute floor: at few requests in flight the mean alone is a bound of one or two, which scatters
prefixes for no gain.

Of an endpoint that is eased in, the bound is multiplied by its share and is one at least; where the least
busy is looked for, (in flight + 1) / share is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from extproc.pool.snapshot import Snapshot
from extproc.routing.pick import RETRIES
from extproc.routing.rendezvous import Merits, best, less_load_first, prefer


@dataclass(frozen=True, slots=True)
class Balance:
    """The part of the bound that follows the load of the pool."""

    factor: float = 1.25
    """Multiple of the mean in-flight count. KubeAI's default too. Loads differ by chance alone, so the
    nearer to 1 the more requests leave their cache for evenness' sake; at 1 it would be round robin."""
    floor: int = 8
    """Requests. Engines batch this many at little cost to each, so below it a cache hit is worth more than
    evenness."""


_EASED_PARTS = 64
"""Loads of endpoints that are eased in are compared in so small parts of a request."""


class Ranking(NamedTuple):
    """Indices of endpoints, the choice first, then those to retry on."""

    order: list[int]
    home: int
    """The first choice by merit, which is `order[0]` unless it had no room."""
    spilled: bool


@dataclass(frozen=True, slots=True)
class SpillRule:
    """The rule with its settings; see the module."""

    concurrency_threshold: int = 256
    balance: Balance | None = Balance()
    max_in_flight: int | None = None
    """Requests per endpoint from which on it takes no more; None: it always takes more."""

    def full(self, endpoints: Snapshot) -> NDArray[np.bool_]:
        """By endpoint: whether it takes no more requests."""
        if self.max_in_flight is None:
            return np.zeros(len(endpoints), dtype=np.bool_)
        return endpoints.in_flight >= self.max_in_flight

    def room(self, endpoints: Snapshot, bound: float) -> NDArray[np.bool_]:
        """By endpoint: whether a prefix may stay on it under this bound."""
        ease = endpoints.ease
        return endpoints.in_flight < (bound if ease is None else np.maximum(1.0, bound * ease))

    def bound(self, in_flight: NDArray[np.int64]) -> float:
        """The count from which on an endpoint has no room, given the counts of the eligible endpoints (one
        or more).
        """
        bound = float(self.concurrency_threshold)
        if self.balance is not None:
            mean = (int(np.add.reduce(in_flight)) + 1) / len(in_flight)
            bound = min(bound, max(self.balance.factor * mean, self.balance.floor))
        return bound if self.max_in_flight is None else min(bound, self.max_in_flight)

    def rank(self, merits: Merits, endpoints: Snapshot) -> Ranking | None:
        """Rank by HRW weight under the bound. None: every eligible endpoint is full. Needs an eligible
        endpoint.

        Endpoints to retry on follow in HRW order too: those with room, those without, suspects.
        """
        in_flight, eligible = endpoints.in_flight, endpoints.eligible
        order = best(_suspects_last(merits, eligible), 1 + RETRIES)
        home = order[0]
        count, ease = in_flight.item(home), endpoints.ease
        if ease is None and self.has_room_anyway(count):
            return Ranking(order, home, False)
        bound = self.bound(in_flight[eligible])
        if count < (bound if ease is None else max(1.0, bound * ease.item(home))):
            return Ranking(order, home, False)
        room = self.room(endpoints, bound)
        if np.count_nonzero(room & eligible):
            ranked = prefer(merits, room)
        elif self._is_full(in_flight[eligible].min()):
            return None
        else:
            ranked = self._least_busy_first(merits, endpoints)
        order = best(_suspects_last(ranked, eligible), 1 + RETRIES)
        return Ranking(order, home, order[0] != home)

    def has_room_anyway(self, count: int) -> bool:
        """Whether an endpoint with this count has room however busy the others are: no total is needed."""
        return (
            count < self.concurrency_threshold
            and (self.balance is None or count < self.balance.floor)
            and (self.max_in_flight is None or count < self.max_in_flight)
        )

    def least_busy(self, merits: Merits, endpoints: Snapshot) -> list[int] | None:
        """Rank by in-flight count alone, ties by merit. None: every eligible endpoint is full."""
        ranked = self._least_busy_first(merits, endpoints)
        order = best(_suspects_last(ranked, endpoints.eligible), 1 + RETRIES)
        return None if self._is_full(endpoints.in_flight.item(order[0])) else order

    def any_with_room(self, merits: Merits, endpoints: Snapshot) -> list[int] | None:
        """Rank by merit alone, of the endpoints that are not full. None: every eligible endpoint is
        full.
        """
        if self.max_in_flight is not None:
            merits = prefer(merits, endpoints.in_flight < self.max_in_flight)
        order = best(_suspects_last(merits, endpoints.eligible), 1 + RETRIES)
        return None if self._is_full(endpoints.in_flight.item(order[0])) else order

    def _least_busy_first(self, merits: Merits, endpoints: Snapshot) -> Merits:
        in_flight, ease = endpoints.in_flight, endpoints.ease
        if ease is None:
            return less_load_first(merits, in_flight)
        ranked = less_load_first(merits, ((in_flight + 1) * (_EASED_PARTS / ease)).astype(np.int64))
        # A full one may be the least busy by this measure.
        return ranked if self.max_in_flight is None else prefer(ranked, in_flight < self.max_in_flight)

    def _is_full(self, count: int) -> bool:
        return self.max_in_flight is not None and count >= self.max_in_flight


def _suspects_last(merits: Merits, eligible: NDArray[np.bool_]) -> Merits:
    # Nearly always there are none, and then nothing has to be computed.
    return merits if np.count_nonzero(eligible) == len(eligible) else prefer(merits, eligible)
