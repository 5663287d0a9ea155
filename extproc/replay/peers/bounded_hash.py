"""Consistent hashing with bounded loads (CHWBL) on the first part of the prompt: as KubeAI does.

A ring with `replication` points per endpoint; from the prefix's point on, the first endpoint whose load is at
most `mean_load_factor` % of the mean (this request counted) is taken. Source: KubeAI's documentation of
`loadBalancing.prefixHash` (strategy PrefixHash; meanLoadFactor 125, replication 256, prefixCharLength
100) and Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018. It keys by the
first characters of the first user message; where a trace has no text, `length` bytes of the prompt.
"""

from __future__ import annotations

import random
from bisect import bisect_left

import xxhash

from extproc.pool.snapshot import Snapshot
from extproc.replay.arrival import Arrival
from extproc.replay.peers.prefix_key import first_bytes
from extproc.replay.policy import Policy


class BoundedHash(Policy):
    """`length` in bytes of the prompt."""

    def __init__(self, length: int = 8192, mean_load_factor: float = 1.25, replication: int = 256) -> None:
        self._length = length
        self._factor = mean_load_factor
        self._replication = replication
        self._of: tuple[str, ...] = ()
        self._points: list[int] = []
        self._owners: list[int] = []

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        """As in `Policy`."""
        if endpoints.addresses is not self._of:
            self._build(endpoints.addresses)
        loads = endpoints.in_flight.tolist()
        bound = (sum(loads) + 1) / len(loads) * self._factor
        key = xxhash.xxh3_64_intdigest(first_bytes(request.keys, self._length).to_bytes(8, "little"))
        start = bisect_left(self._points, key)
        count = len(self._points)
        for step in range(count):
            owner = self._owners[(start + step) % count]
            if loads[owner] <= bound:
                return endpoints.addresses[owner]
        return endpoints.addresses[self._owners[start % count]]

    def _build(self, addresses: tuple[str, ...]) -> None:
        self._of = addresses
        points = sorted(
            (xxhash.xxh3_64_intdigest(f"{address}{replica}".encode()), index)
            for index, address in enumerate(addresses)
            for replica in range(self._replication)
        )
        self._points = [point for point, _ in points]
        self._owners = [index for _, index in points]
