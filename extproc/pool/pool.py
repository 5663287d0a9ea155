"""A pool: the endpoints of one model service, how busy they are, and which of them are in doubt."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import numpy as np
import xxhash

from extproc.address import parse_endpoints
from extproc.pool.backlog import REQUEST_TOKENS, Backlogs, Work
from extproc.pool.discovery.found import NodeCache
from extproc.pool.ease import Easing, SlowStart
from extproc.pool.health import PassiveHealth
from extproc.pool.ledger import Ledger, Token
from extproc.pool.others import Others
from extproc.pool.reports import EngineReport, EngineReports
from extproc.pool.snapshot import Queues, Snapshot

ADDRESS_SEED = 0x7761726D
"""Seed of the endpoints' xxh3_64. Changing it moves every prefix once, and replicas must agree on it."""

_UNKNOWN: Mapping[str, NodeCache] = {}


class InFlight:
    """A request on its way: counted in flight on its endpoint, and its prompt among what waits there."""

    __slots__ = ("_backlogs", "_token", "_work")

    def __init__(self, backlogs: Backlogs, token: Token, work: Work) -> None:
        self._backlogs = backlogs
        self._token = token
        self._work = work

    @property
    def address(self) -> str:
        """The endpoint that the request is counted on, or was last counted on."""
        return self._token.address

    @property
    def taken_at(self) -> float:
        """When the endpoint was picked."""
        return self._token.taken_at

    def move(self, address: str, now: float) -> None:
        """Count the request on `address`, the endpoint that really serves it. Nothing happens after
        release.
        """
        if address != self._token.address and self._token.held:
            self._token.move(address)
            self._backlogs.dropped(self._work, now)
            self._work = self._backlogs.add(address, self._work.tokens - REQUEST_TOKENS, now)

    def release(self, now: float, computed: bool = True) -> None:
        """The request has ended; `computed` says that its response had begun. Only the first call counts,
        so every way out of a stream may call it.
        """
        if self._token.held:
            self._token.release()
            (self._backlogs.ended if computed else self._backlogs.dropped)(self._work, now)


class Pool:
    """One pool as the picker uses it, request by request:

    `snapshot` -> a strategy's `pick` -> `take` -> (`served` or `missed`) -> `InFlight.release`.

    Times are seconds of one monotonic clock, passed in.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.synced = False
        """False until the endpoints were learnt once: until then the pool is unknown, which is not
        empty."""
        self._ledger = Ledger()
        self._health = PassiveHealth()
        self._reports: EngineReports | None = None
        self._backlogs = Backlogs()
        self._others = Others()
        self._easing = Easing()
        self._node_caches: Mapping[str, NodeCache] = {}
        self._addresses: tuple[str, ...] = ()
        self._index: dict[str, int] = {}
        self._hashes = np.zeros(0, dtype=np.uint64)
        self._slots = np.zeros(0, dtype=np.intp)
        self._all_eligible = np.ones(0, dtype=np.bool_)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The endpoints, in the order in which they were given."""
        return self._addresses

    @property
    def suspects(self) -> frozenset[str]:
        """Endpoints that missed and have not served since."""
        return self._health.suspects()

    def __len__(self) -> int:
        return len(self._addresses)

    def use(self, slow_start: SlowStart) -> None:
        """Ease endpoints that join in by these settings from now on."""
        self._easing.use(slow_start)

    @property
    def node_caches(self) -> Mapping[str, NodeCache]:
        """What is known of the endpoints' nodes, by address; unknown of those that are not in it."""
        return self._node_caches

    def node_cache(self, address: str) -> NodeCache:
        """Whether the weights are on the node of this endpoint."""
        return self._node_caches.get(address, "unknown")

    def set_endpoints(
        self,
        addresses: Iterable[str],
        now: float | None = None,
        node_caches: Mapping[str, NodeCache] = _UNKNOWN,
    ) -> None:
        """These are the pool's endpoints now; duplicates count once. The pool is synced from here on.

        What joins a synced pool at `now` is eased in, those on cold nodes by `node_caches` more slowly; None:
        it joins as if it had always been there.

        In-flight counts stay with their addresses, also of endpoints that leave and come back. Raises
        ValueError that names the first address that is not `ip:port`, and then nothing has changed.
        """
        canonical = parse_endpoints(addresses)
        cold = {address for address, said in node_caches.items() if said == "cold"}
        self._easing.set_members(canonical, now if self.synced else None, cold)
        self._node_caches = node_caches
        self.synced = True
        if canonical == self._addresses:
            return
        self._addresses = canonical
        self._index = {address: index for index, address in enumerate(canonical)}
        self._hashes = np.array(
            [xxhash.xxh3_64_intdigest(address.encode(), seed=ADDRESS_SEED) for address in canonical],
            dtype=np.uint64,
        )
        self._slots = self._ledger.set_addresses(canonical)
        self._all_eligible = np.ones(len(canonical), dtype=np.bool_)
        self._health.set_members(canonical)
        self._backlogs.set_addresses(canonical)
        if self._reports is not None:
            self._reports.set_addresses(canonical)
        for shared in (self._hashes, self._all_eligible):
            shared.setflags(write=False)

    def snapshot(self, now: float, only: Collection[str] | None = None) -> Snapshot:
        """The pool at `now`; with `only`, just those of its endpoints that are named there (canonical
        spelling).

        At least one endpoint is eligible unless there is none: when `only` leaves nothing but suspects,
        they are.
        """
        in_flight = self._ledger.in_flight(self._slots)
        if self._reports is not None:
            in_flight = self._reports.load(in_flight, self._ledger.picks(self._slots), now)
        eligible = self._all_eligible
        excluded = self._health.excluded(now)
        if excluded:
            eligible = eligible.copy()
            eligible[[self._index[address] for address in excluded]] = False
        queues = Queues(
            self._backlogs.tokens(now),
            self._backlogs.typical,
            self._others.known_share(now),
            self._others.unseen(now),
        )
        ease = self._easing.shares(now)
        whole = Snapshot(self._addresses, self._hashes, in_flight, eligible, queues, ease, self._addresses)
        return whole if only is None else self._subset(whole, only)

    def take(self, address: str, now: float, uncached: float = 0.0) -> InFlight:
        """Count a request whose first choice is `address`, which has to compute so many tokens of the
        prompt. If that endpoint is half-open, this is its probe.
        """
        self._health.picked(address, now)
        work = self._backlogs.add(address, uncached, now)
        self._others.sent(work.tokens)
        return InFlight(self._backlogs, self._ledger.take(address, now), work)

    def heard(self, address: str, tokens: float, at: float) -> None:
        """Another replica sent a request to `address` at `at`, with so many tokens to be computed there."""
        if address in self._index:
            self._others.heard(self._backlogs.add(address, tokens, at).tokens, at)

    def served(self, address: str, now: float) -> None:
        """`address` served a request: it is healthy."""
        self._health.served(address, now)

    def missed(self, address: str, now: float, picked_at: float | None = None) -> None:
        """`address` was first choice of a request picked at `picked_at` (default: now) and did not serve
        it.
        """
        self._health.missed(address, now, picked_at)

    def report(self, address: str, report: EngineReport, now: float) -> None:
        """The engine at `address` was read at `now`. See `reports` for what is made of it. Ignored for an
        address that is not in the pool.
        """
        index = self._index.get(address)
        if index is None:
            return
        if self._reports is None:
            self._reports = EngineReports()
            self._reports.set_addresses(self._addresses)
        slot = self._slots[index : index + 1]
        picks = int(self._ledger.picks(slot)[0])
        self._others.reported(float(self._ledger.in_flight(slot)[0]), report.running + report.waiting, now)
        self._backlogs.reported(address, report, now)
        self._reports.put(address, report.running + report.waiting, picks, now)

    def in_flight(self) -> dict[str, int]:
        """Own in-flight counts by address: every endpoint of the pool, and others while requests run on
        them.
        """
        return self._ledger.counts()

    def _subset(self, whole: Snapshot, only: Collection[str]) -> Snapshot:
        # In the pool's order, whatever order a set of names has in this process.
        chosen = sorted({self._index[address] for address in only if address in self._index})
        allowed = whole.eligible[chosen]
        queues = whole.queues
        if queues is not None:
            queues = queues._replace(tokens=queues.tokens[chosen])
        return Snapshot(
            tuple(self._addresses[index] for index in chosen),
            self._hashes[chosen],
            whole.in_flight[chosen],
            allowed if allowed.any() else np.ones(len(chosen), dtype=np.bool_),
            queues,
            None if whole.ease is None else whole.ease[chosen],
            self._addresses,
        )
