"""A hash of the first part of the prompt, and a threshold: as SageMaker's PREFIX_AWARE is described.

Requests whose first `PrefixLength` bytes are equal go to the same instance, unless it has
`ConcurrencyThreshold` requests in flight: then to one with more capacity. Source: the API reference of
`RoutingStrategy`, `PrefixLength` (1,024 to 65,536) and `ConcurrencyThreshold` (1 to 1,024) in Amazon
SageMaker's `ProductionVariantRoutingConfig`. How it hashes is not published: HRW stands for it.
"""

from __future__ import annotations

import random

import numpy as np

from extproc.pool.snapshot import Snapshot
from extproc.replay.arrival import Arrival
from extproc.replay.peers.load import least
from extproc.replay.peers.prefix_key import first_bytes
from extproc.replay.policy import Policy
from extproc.routing.rendezvous import weights


class FixedPrefix(Policy):
    """`length` in bytes of the prompt; `threshold` in requests in flight."""

    def __init__(self, length: int = 8192, threshold: int = 16) -> None:
        self._length = length
        self._threshold = threshold

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        """As in `Policy`."""
        home = int(np.argmax(weights(first_bytes(request.keys, self._length), endpoints.hashes)))
        if endpoints.in_flight.item(home) >= self._threshold:
            home = least(endpoints.in_flight, draw)
        return endpoints.addresses[home]
