"""A pool: the endpoints of one model service, how busy they are, and which of them are in doubt."""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np
import xxhash
from numpy.typing import NDArray

from extproc.address import parse_endpoints
from extproc.pool.health import PassiveHealth
from extproc.pool.ledger import Ledger, Token
from extproc.pool.reports import EngineReport, EngineReports
from extproc.pool.snapshot import Snapshot

ADDRESS_SEED = 0x7761726D
"""Seed of the endpoints' xxh3_64. Changing it moves every prefix once, and replicas must agree on it."""


class Pool:
    """One pool as the picker uses it, request by request:

    `snapshot` -> a strategy's `pick` -> `take` -> (`served` or `missed`) -> `Token.release`.

    Times are seconds of one monotonic clock, passed in.
    """

    def __init__(self, name: str, ledger: Ledger | None = None) -> None:
        self.name = name
        self.synced = False
        """False until the endpoints were learnt once: until then the pool is unknown, which is not
        empty."""
        self._ledger = Ledger() if ledger is None else ledger
        self._health = PassiveHealth()
        self._reports: EngineReports | None = None
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

    def set_endpoints(self, addresses: Iterable[str]) -> None:
        """These are the pool's endpoints now; duplicates count once. The pool is synced from here on.

        In-flight counts stay with their addresses, also of endpoints that leave and come back. Raises
        ValueError that names the first address that is not `ip:port`, and then nothing has changed.
        """
        canonical = parse_endpoints(addresses)
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
        if only is None:
            return Snapshot(self._addresses, self._hashes, in_flight, eligible)
        return self._subset(only, in_flight, eligible)

    def take(self, address: str, now: float) -> Token:
        """Count a request whose first choice is `address`. If that endpoint is half-open, this is its
        probe.
        """
        self._health.picked(address, now)
        return self._ledger.take(address, now)

    def served(self, address: str, now: float) -> None:
        """`address` served a request: it is healthy."""
        self._health.served(address, now)

    def missed(self, address: str, now: float, picked_at: float | None = None) -> None:
        """`address` was first choice of a request picked at `picked_at` (default: now) and did not serve
        it.
        """
        self._health.missed(address, now, picked_at)

    def probing(self, address: str) -> bool:
        """Whether `address` is suspect and a probe of it is under way."""
        return self._health.probing(address)

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
        picks = int(self._ledger.picks(self._slots[index : index + 1])[0])
        self._reports.put(address, report.running + report.waiting, picks, now)

    def in_flight(self) -> dict[str, int]:
        """Own in-flight counts by address: every endpoint of the pool, and others while requests run on
        them.
        """
        return self._ledger.counts()

    def _subset(
        self, only: Collection[str], in_flight: NDArray[np.int64], eligible: NDArray[np.bool_]
    ) -> Snapshot:
        # In the pool's order, whatever order a set of names has in this process.
        chosen = sorted({self._index[address] for address in only if address in self._index})
        allowed = eligible[chosen]
        return Snapshot(
            tuple(self._addresses[index] for index in chosen),
            self._hashes[chosen],
            in_flight[chosen],
            allowed if allowed.any() else np.ones(len(chosen), dtype=np.bool_),
        )
