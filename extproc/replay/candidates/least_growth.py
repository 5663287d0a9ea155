"""Least growth: a request goes where the squared backlog grows least.

1. For each endpoint the router estimates how many tokens of the prompt would have to be computed there, from
   what was sent there before (`sent`), and how many wait to be computed there already (`backlog`).
2. With backlog b and work w of the request there, b squared grows by w x (2b + w); the endpoint where that is
   least gets it, equal ones in HRW order of the prompt's last key.
3. So a prefix stays where it is cached (w is small there) until the queue there costs more than computing it
   anew elsewhere, and a prompt that is new everywhere goes to the shortest queue.
4. Squares and not sums, because work that is computed needlessly delays all who come behind it, the more the
   longer the queue is: the sum of squared queues is what total waiting grows with.
5. Blocks that are popular, like a system prompt that all share, count next to nothing where they are missing:
   they pay off at once, and an engine that has nothing yet is used from the start.
6. Endpoints at the concurrency threshold come last, whatever they would cost.

Minimising the growth of squared backlogs is the drift argument of Tassiulas and Ephremides (IEEE Transactions
on Automatic Control 37(12), 1992) with the work of a request depending on the server.

Where replicas share their picks, those of others are entered as own ones. Replicas that do not share them
must not use this rule: none would know where the others have sent a prefix.
"""

from __future__ import annotations

import random
from itertools import count
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from extproc.pool.reports import EngineReport
from extproc.pool.snapshot import Snapshot
from extproc.prefix import BlockKeys
from extproc.replay.candidates.backlog import REQUEST_TOKENS, Backlog, Speed, Work
from extproc.replay.candidates.sent import TOKEN_BYTES, Sent
from extproc.routing.pick import EMPTY, RETRIES, Pick
from extproc.routing.rendezvous import weights

POPULAR_PRICE = 0.03
"""Part of its tokens at which a popular block counts where it is missing: once computed there, it is there
for many."""
TYPICAL_OVER = 200
"""Requests over which the mean of tokens to compute is taken."""
CAPACITY_TOKENS = 1 << 20
"""KV cache of an engine that does not say its size."""


class Placed(NamedTuple):
    """A pick, and what must be handed back when its response has ended."""

    pick: Pick
    work: Work | None


class LeastGrowth:
    """The rule, with its own memory of one pool."""

    name: Final = "LEAST_GROWTH"
    wants_keys: Final = True
    prefix_length: Final[int | None] = None

    def __init__(self, concurrency_threshold: int = 16, capacity_tokens: int = CAPACITY_TOKENS) -> None:
        """`concurrency_threshold`: requests in flight. `capacity_tokens`: KV cache of one engine."""
        self._threshold = concurrency_threshold
        self._capacity = capacity_tokens
        self._sent = Sent()
        self._addresses: tuple[str, ...] = ()
        self._slots: dict[str, int] = {}
        self._width = 0
        self._backlogs: dict[str, Backlog] = {}
        self._aligned = self._align(())
        self._speed = Speed()
        self._typical = 0.0
        self._seen = 0
        self._reports: dict[str, EngineReport] = {}

    def set_endpoints(self, addresses: tuple[str, ...]) -> None:
        """These are the pool's endpoints now. Of those that stay all is kept, of those that left nothing."""
        gone = self._slots.keys() - set(addresses)
        if gone:
            self._sent.forget([self._slots.pop(address) for address in gone])
        taken = set(self._slots.values())
        free = (slot for slot in count() if slot not in taken)
        for address in addresses:
            if address not in self._slots:
                self._slots[address] = next(free)
        self._width = max(self._slots.values(), default=-1) + 1
        self._backlogs = {
            address: self._backlogs.get(address) or Backlog(self._speed) for address in addresses
        }
        for address in self._reports.keys() - set(addresses):
            del self._reports[address]
        self._addresses = addresses
        self._aligned = self._align(addresses)

    def pick(self, keys: BlockKeys | None, endpoints: Snapshot, draw: random.Random, now: float) -> Placed:
        """Choose, and enter the pick. `now`: seconds of the clock that all times here are of."""
        if not np.count_nonzero(endpoints.eligible):
            return Placed(EMPTY, None)
        slots, backlogs = self._aligned
        if endpoints.addresses is not self._addresses:
            slots, backlogs = self._align(endpoints.addresses)
        chain = keys if keys is not None else BlockKeys([], [])
        length = chain.ends[-1] // TOKEN_BYTES if chain.ends else 0
        match = self._sent.match(chain, self._width)
        uncached = length - match.covered[slots]
        unpopular = np.minimum(uncached, length - match.popular)
        speed = self._speed.tokens_per_s
        backlog = np.array([max(0.0, one.free_at - now) for one in backlogs]) * speed
        work = REQUEST_TOKENS + unpopular + POPULAR_PRICE * (uncached - unpopular)
        growth = work * (2.0 * backlog + work)
        key = chain.keys[-1] if chain.keys else draw.getrandbits(64)
        order = self._ranked(growth, weights(key, endpoints.hashes), endpoints)
        address = endpoints.addresses[order[0]]
        entered = self._enter(chain, address, float(uncached[order[0]]), now)
        ranked = tuple(endpoints.addresses[index] for index in order)
        return Placed(Pick(ranked, "prefix" if uncached[order[0]] < length else "load"), entered)

    def ended(self, work: Work, now: float) -> None:
        """The response to this pick has ended."""
        work.backlog.ended(work, now)

    def reported(self, address: str, report: EngineReport, now: float) -> None:
        """The engine at `address` was read at `now`."""
        backlog = self._backlogs.get(address)
        if backlog is None:
            return
        before = self._reports.get(address)
        if before is not None:
            self._speed.observe(
                report.computed_tokens - before.computed_tokens,
                report.prefills - before.prefills,
                report.prefill_s - before.prefill_s,
            )
        self._reports[address] = report
        backlog.reported(report.waiting, self._typical, now)

    def heard(self, keys: BlockKeys, address: str, now: float) -> None:
        """Another replica picked `address` for a prompt at `now`."""
        if address in self._slots:
            length = keys.ends[-1] // TOKEN_BYTES if keys.ends else 0
            covered = self._sent.match(keys, self._width).covered[self._slots[address]]
            self._enter(keys, address, length - float(covered), now)

    def _ranked(
        self, growth: NDArray[np.float64], merits: NDArray[np.uint64], endpoints: Snapshot
    ) -> list[int]:
        full = endpoints.in_flight >= self._threshold
        order: list[int] = np.lexsort((~merits, growth, full, ~endpoints.eligible)).tolist()
        return order[: 1 + RETRIES]

    def _enter(self, chain: BlockKeys, address: str, uncached: float, now: float) -> Work:
        self._seen += 1
        work = self._backlogs[address].add(uncached, now)
        self._typical += (work.tokens - self._typical) / min(self._seen, TYPICAL_OVER)
        self._sent.add(chain, self._slots[address], self._capacity * len(self._addresses))
        return work

    def _align(self, addresses: tuple[str, ...]) -> tuple[NDArray[np.intp], list[Backlog]]:
        """Slots and backlogs in the order of these endpoints, all of which are in the pool."""
        slots = np.array([self._slots[address] for address in addresses], dtype=np.intp)
        return slots, [self._backlogs[address] for address in addresses]
