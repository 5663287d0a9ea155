"""PREFIX_AWARE: a request goes where it does least harm.

1. For each endpoint the router estimates how many tokens of the prompt would have to be computed there, from
   what was sent there before (`sent`), and how many tokens wait there already (`extproc.pool.backlog`).
2. With b tokens waiting and w to be computed, the square of what waits grows by w x (2b + w); the endpoint
   where that is least gets the request.
3. So a prefix stays where it is cached (w is small there) until the queue costs more than computing it anew
   elsewhere, and a prompt that is new everywhere goes to the shortest queue; equal ones go to the first in
   HRW order of the first block that the prompt does not share with much of the traffic.
4. Each queue is taken to be longer than it is by what will join it soon, a few typical requests, so that
   computing a prefix anew is never free; blocks that are popular, like a system prompt that all share, count
   next to nothing, since every endpoint will have them soon.
5. Endpoints at the concurrency threshold come last, whatever they would cost.

Squares and not sums, because work that is done needlessly delays all who come behind it, the more the
longer the queue is. Minimising the growth of squared backlogs is the drift argument of Tassiulas and
Ephremides (IEEE Transactions on Automatic Control 37(12), 1992), with the work of a request depending on the
server; that what a queue will cost grows with its square holds for each M/G/1 queue by itself too (Hyytiä,
Penttinen, Aalto, European Journal of Operational Research 218(1), 2012).

What other replicas sent is entered as one's own where they share their picks. What they may have sent since
they last told is poured over the shortest queues until those are level, and equal ones are chosen in
proportion to what was poured, again in HRW order: so replicas do not all choose the same short queue (Dahlin,
"Interpreting stale load information", IEEE Transactions on Parallel and Distributed Systems 11(10), 2000).
Where they do not share, another replica has probably sent the prompt to its HRW home before: it is weighed as
if the home had it with probability `AT_HOME`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extproc.pool.backlog import REQUEST_TOKENS
from extproc.pool.snapshot import Snapshot
from extproc.prefix import BlockKeys
from extproc.routing.latest import Latest
from extproc.routing.pick import EMPTY, RETRIES, SHED, Foreseen, Pick, Reason
from extproc.routing.rendezvous import best, lowest, weights
from extproc.routing.sent import TOKEN_BYTES, Match, Sent

YET_TO_COME = 3.0
"""Typical requests by which each queue is taken to be longer than it is."""
POPULAR_PRICE = 0.03
"""Part of its tokens at which a popular block counts where it is missing: once computed there, it is there
for many. What all requests have counts nothing: sooner or later it has to be everywhere."""
RUNNING_PRICE = 0.1
"""Part of a typical request that each request in flight counts as waiting: it decodes, and slows others."""
AT_HOME = 0.8
"""How sure it is that another replica, of those that do not tell, has sent a known prompt to its home."""
NOT_YET = 1000.0
"""Times that a growth counts at a new endpoint whose share does not hold the prompt yet."""
ABOUT_EQUAL = 1.05
"""Growths that differ by no more are equal, and HRW order decides."""

_NO_SLOTS = np.zeros(0, dtype=np.intp)
_UNIT_BELOW = 2.0**-64 * (1 - 2**-50)
"""Makes a hash plus one a number between 0 and 1, neither of which it is."""


class Weighed(NamedTuple):
    """What the rule makes of one prompt. Arrays are in the order of the snapshot; tokens."""

    match: Match | None
    """None: the prompt has no keys."""
    length: float
    """Tokens of the prompt, as far as it was read."""
    uncached: NDArray[np.float64]
    """To be computed there, as far as is known."""
    work: NDArray[np.float64]
    """What it would cost: uncached, with popular blocks at their price, and `REQUEST_TOKENS`."""
    queue: NDArray[np.float64]
    """Taken to wait there."""
    growth: NDArray[np.float64]
    """Of the squared queue, tokens squared."""
    poured: NDArray[np.float64] | None
    """Part of the queue that other replicas may have sent since they last told; None: nothing."""
    full: NDArray[np.bool_]
    """At the concurrency threshold, or from where on it takes no more."""


@dataclass(frozen=True, slots=True)
class Weighing(Foreseen):
    """What the rule would make of a prompt."""

    weighed: Weighed


class PrefixAware:
    """The rule, with its own memory of one pool."""

    name: Final = "PREFIX_AWARE"
    wants_keys: Final = True
    prefix_length: Final[int | None] = None

    def __init__(
        self,
        concurrency_threshold: int,
        max_in_flight: int | None = None,
        before: PrefixAware | None = None,
    ) -> None:
        """`concurrency_threshold`, `max_in_flight`: requests per endpoint; None: never shed. What `before`
        has learnt is taken over.
        """
        self._bound = (
            concurrency_threshold if max_in_flight is None else min(concurrency_threshold, max_in_flight)
        )
        self._max_in_flight = max_in_flight
        self._sent: Sent = before._sent if before else Sent()
        self._members: tuple[str, ...] = before._members if before else ()
        self._aligned: tuple[tuple[str, ...], NDArray[np.intp]] = ((), _NO_SLOTS)
        self._latest: Latest = before._latest if before else Latest()

    def pick(self, keys: BlockKeys | None, endpoints: Snapshot, draw: random.Random) -> Pick:
        """As in `Strategy`. Unless nobody can take the request, it is remembered as sent there."""
        nowhere = self._nowhere(endpoints)
        if nowhere is not None:
            return nowhere
        found = self._weigh(keys, endpoints, self._sent, self._slots_of(endpoints))
        pick = self._chosen(found, endpoints, draw)
        if found.match is not None and keys is not None:
            self._remember(keys, found.match, pick.ranked[0])
        return pick

    def served(self, keys: BlockKeys, address: str) -> None:
        """As in `Strategy`: it has the prompt now, too."""
        if address in self._sent.slots:
            self._sent.also(keys.keys, address)

    def foresee(self, keys: BlockKeys | None, endpoints: Snapshot, draw: random.Random) -> Foreseen:
        """As in `Strategy`; a `Weighing` if there is an endpoint."""
        if not len(endpoints):
            return Foreseen(EMPTY, np.zeros(0, dtype=np.bool_), self._bound)
        members = endpoints.addresses if endpoints.members is None else endpoints.members
        sent = self._sent if members == self._members else self._sent.with_endpoints(members)
        slots = np.array([sent.slots[address] for address in endpoints.addresses], dtype=np.intp)
        found = self._weigh(keys, endpoints, sent, slots)
        pick = self._nowhere(endpoints)
        if pick is None:
            pick = self._chosen(found, endpoints, draw)
        return Weighing(pick, found.full, self._bound, found)

    def _nowhere(self, endpoints: Snapshot) -> Pick | None:
        """The answer where no endpoint can take a request."""
        if not np.count_nonzero(endpoints.eligible):
            return EMPTY
        if self._max_in_flight is not None and not np.any(
            endpoints.eligible & (endpoints.in_flight < self._max_in_flight)
        ):
            return SHED
        return None

    def _chosen(self, found: Weighed, endpoints: Snapshot, draw: random.Random) -> Pick:
        match = found.match
        tie = match.home_key if match is not None else draw.getrandbits(64)
        order = _ranked(found, tie, endpoints, self._max_in_flight)
        uncached = found.uncached.item(order[0])
        reason: Reason = "new"
        if match is None:
            reason = "load"
        elif match.longest > match.popular:
            reason = "prefix" if found.length - uncached >= match.longest else "spill"
        return Pick(tuple([endpoints.addresses[index] for index in order]), reason, uncached)

    def _weigh(
        self, keys: BlockKeys | None, endpoints: Snapshot, sent: Sent, slots: NDArray[np.intp]
    ) -> Weighed:
        """What each endpoint would cost the prompt, and others by it. `slots` are those of the endpoints in
        `sent`.
        """
        queues = endpoints.queues
        typical = REQUEST_TOKENS if queues is None else queues.typical
        queue: NDArray[np.float64] = np.multiply(endpoints.in_flight, RUNNING_PRICE * typical)
        queue += YET_TO_COME * typical
        if queues is not None:
            queue += queues.tokens
        match: Match | None = None
        length = 0.0
        if keys is None or not keys.keys:
            uncached = np.zeros(len(slots))
            work = np.full(len(slots), REQUEST_TOKENS)
        else:
            match = sent.match(keys.keys, keys.ends)
            length = float(keys.ends[-1] // TOKEN_BYTES)
            uncached = length - match.covered.take(slots)
            if match.popular:
                work = _priced(uncached, length - match.popular, POPULAR_PRICE * (1.0 - match.share))
            else:
                work = uncached + REQUEST_TOKENS
        poured: NDArray[np.float64] | None = None
        if queues is not None and queues.unseen > 0.0:
            level = _level(queue, queues.unseen)
            poured = np.maximum(level - queue, 0.0)
            queue += poured
        growth = 2.0 * queue
        growth += work
        growth *= work
        if match is not None and queues is not None and queues.known_share < 1.0:
            sure = AT_HOME * min(1.0, 2.0 * (1.0 - queues.known_share))
            home = int(weights(match.home_key, endpoints.hashes).argmax())
            cached = REQUEST_TOKENS * (2.0 * queue.item(home) + REQUEST_TOKENS)
            growth[home] += sure * (cached - growth.item(home))
        if endpoints.ease is not None:
            if match is None:
                growth /= endpoints.ease
            else:
                # So it takes its share of prefixes, and keeps those that it has taken.
                order = (weights(match.home_key, endpoints.hashes).astype(np.float64) + 1.0) * _UNIT_BELOW
                new = match.covered[slots] <= match.popular
                growth[new & (order > endpoints.ease)] *= NOT_YET
        full = endpoints.in_flight >= self._bound
        return Weighed(match, length, uncached, work, queue, growth, poured, full)

    def learn(self, keys: BlockKeys, address: str) -> float:
        """Another replica sent this prompt to `address`, an endpoint of the pool: returns the tokens to be
        computed there, as far as is known here."""
        if not keys.keys:
            return 0.0
        slots = self._sent.slots
        if address not in slots:  # no pick has been made since it joined, or none at all
            self._sent.set_endpoints((*slots, address))
            self._members = ()
        match = self._sent.match(keys.keys, keys.ends)
        self._remember(keys, match, address)
        return float(keys.ends[-1] // TOKEN_BYTES) - match.covered.item(slots[address])

    def known(self, limit: int) -> Iterator[tuple[list[int], list[int], str]]:
        """The last prompts that were sent somewhere, the latest first: keys, ends and address."""
        for keys, address in islice(self._latest, limit):
            if address in self._sent.slots:
                yield keys.keys, keys.ends, address

    def _remember(self, keys: BlockKeys, match: Match, address: str) -> None:
        self._sent.add(keys.keys, match.entries, address)
        self._latest.add(keys, address)

    def _slots_of(self, endpoints: Snapshot) -> NDArray[np.intp]:
        members = endpoints.addresses if endpoints.members is None else endpoints.members
        if members is not self._members and members != self._members:
            self._sent.set_endpoints(members)
            self._aligned = ((), _NO_SLOTS)
        self._members = members
        addresses, slots = self._aligned
        if endpoints.addresses is not addresses:
            known = self._sent.slots
            slots = np.array([known[address] for address in endpoints.addresses], dtype=np.intp)
            self._aligned = (endpoints.addresses, slots)
        return slots


def _priced(uncached: NDArray[np.float64], unpopular: float, price: float) -> NDArray[np.float64]:
    """What a request costs: what is popular but missing counts little."""
    dear = np.minimum(uncached, unpopular)
    work = uncached - dear
    work *= price
    work += dear
    work += REQUEST_TOKENS
    return work


def _level(queue: NDArray[np.float64], tokens: float) -> float:
    """How high the shortest queues stand when so many tokens are poured over them."""
    lowest_first = np.sort(queue)
    levels = (np.cumsum(lowest_first) + tokens) / np.arange(1, len(queue) + 1)
    return float(levels[np.count_nonzero(levels > lowest_first) - 1])


def _ranked(found: Weighed, key: int, endpoints: Snapshot, max_in_flight: int | None) -> list[int]:
    """The endpoints by growth, those at the threshold after those with room, then those that take no more,
    suspects last.
    """
    eligible, full = endpoints.eligible, found.full
    everyone = np.count_nonzero(eligible) == len(eligible)
    if everyone and not np.count_nonzero(full):
        return _least(found, key, endpoints.hashes, None, 1 + RETRIES)
    shut = full if max_in_flight is None else endpoints.in_flight >= max_in_flight
    order: list[int] = []
    for tier in (eligible & ~full, eligible & full & ~shut, eligible & shut, ~eligible):
        chosen = np.flatnonzero(tier)
        if len(chosen) and len(order) <= RETRIES:
            order += _least(found, key, endpoints.hashes, chosen, 1 + RETRIES - len(order))
    return order


def _least(
    found: Weighed, key: int, hashes: NDArray[np.uint64], among: NDArray[np.intp] | None, most: int
) -> list[int]:
    """Indices of the least growths, in order; what is about equal to the least comes first in HRW order."""
    growth = found.growth if among is None else found.growth[among]
    order = lowest(growth, most)
    equal = growth.item(order[0]) * ABOUT_EQUAL
    if len(order) > 1 and growth.item(order[1]) <= equal:
        ties = (growth <= equal).nonzero()[0]
        chosen = ties if among is None else among[ties]
        merits = weights(key, hashes[chosen])
        if found.poured is None or not found.poured[chosen].any():
            first = best(merits, most)
        else:
            first = _in_proportion(merits, found.poured[chosen])[:most].tolist()
        order = ties[first].tolist() + order[len(ties) :]
    return order if among is None else among[order].tolist()


def _in_proportion(merits: NDArray[np.uint64], shares: NDArray[np.float64]) -> NDArray[np.intp]:
    """HRW order in which an endpoint comes first with a chance in proportion to its share.

    Weighted rendezvous hashing: the least of -ln(u) / share.
    """
    with np.errstate(divide="ignore"):
        return (-np.log((merits.astype(np.float64) + 1.0) * _UNIT_BELOW) / shares).argsort(kind="stable")
