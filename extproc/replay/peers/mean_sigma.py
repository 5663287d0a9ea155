"""Longest match among endpoints that are not unusually busy: as AIBrix's `prefix-cache` does.

If requests in flight differ by more than `abs_difference` between the busiest and the least busy endpoint,
the least busy one gets the request. Else endpoints are taken by the share of the prompt they were sent, the
largest first, less busy ones first among equals, and the first whose load is at most mean + `sigmas` x
standard deviation gets it. Without any match, the least busy. Source: AIBrix's documentation of its gateway
routing, variables AIBRIX_PREFIX_CACHE_POD_RUNNING_REQUEST_IMBALANCE_ABS_COUNT 8 and
AIBRIX_PREFIX_CACHE_STANDARD_DEVIATION_FACTOR 1; the index holds 200,000 blocks over all endpoints. Loads are
a replica's own requests in flight.
"""

from __future__ import annotations

import random

import numpy as np

from extproc.pool.snapshot import Snapshot
from extproc.replay.arrival import Arrival
from extproc.replay.peers.load import least
from extproc.replay.peers.match_index import Matching


class MeanSigma(Matching):
    """`capacity`: blocks per endpoint."""

    def __init__(self, abs_difference: int = 8, sigmas: float = 1.0, capacity: int = 200_000) -> None:
        super().__init__(capacity)
        self._abs = abs_difference
        self._sigmas = sigmas

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        """As in `Policy`."""
        keys, loads = request.keys.keys, endpoints.in_flight
        matches = self.matches(keys, endpoints)
        chosen = least(loads, draw)
        if int(loads.max()) - int(loads.min()) <= self._abs:
            bound = float(loads.mean()) + self._sigmas * float(np.std(loads))
            order = sorted(range(len(loads)), key=lambda at: (-matches[at], loads.item(at)))
            chosen = next((at for at in order if matches[at] and loads.item(at) <= bound), chosen)
        return self.send(keys, endpoints.addresses[chosen])
