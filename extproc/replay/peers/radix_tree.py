"""Approximate radix tree with a balance switch: as SGLang's model gateway (SMG) does under `cache_aware`.

If load is unbalanced, max - min > `abs_threshold` and max > `rel_threshold` x min, the least loaded endpoint
gets the request whatever it begins with. Else, if the endpoint that was sent the longest match covers more
than `cache_threshold` of the prompt, it does; if not, the endpoint whose tree is smallest. Trees are evicted
from their oldest leaves. Source: SGLang's router documentation, options `--cache-threshold` 0.3 (0.5 in
early versions), `--balance-abs-threshold` 64, `--balance-rel-threshold` 1.5, `--max-tree-size` 2^26
(characters), `--eviction-interval`. Loads are a replica's own requests in flight.
"""

from __future__ import annotations

import random

from extproc.pool.snapshot import Snapshot
from extproc.replay.arrival import Arrival
from extproc.replay.peers.load import least, one_of_the_highest
from extproc.replay.peers.match_index import Matching


class RadixTree(Matching):
    """`capacity`: blocks per endpoint's tree, standing for `--max-tree-size`."""

    def __init__(
        self,
        cache_threshold: float = 0.3,
        abs_threshold: int = 64,
        rel_threshold: float = 1.5,
        capacity: int = 1 << 15,
    ) -> None:
        super().__init__(capacity)
        self._cache_threshold = cache_threshold
        self._abs = abs_threshold
        self._rel = rel_threshold

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        """As in `Policy`."""
        keys, ends, _ = request.keys
        loads = endpoints.in_flight
        low, high = int(loads.min()), int(loads.max())
        matches = self.matches(keys, endpoints)
        longest = max(matches)
        if high - low > self._abs and high > self._rel * low:
            chosen = least(loads, draw)
        elif longest and ends[longest - 1] > self._cache_threshold * ends[-1]:
            chosen = matches.index(longest)
        else:
            chosen = one_of_the_highest([-self.blocks_of(address) for address in endpoints.addresses], draw)
        return self.send(keys, endpoints.addresses[chosen])
