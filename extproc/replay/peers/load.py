"""Policies that look at load or at nothing: random, round robin, least in flight.

Least in flight is what Envoy calls LEAST_REQUEST with a full scan, and what most gateways offer; counts are a
replica's own.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from extproc.pool.snapshot import Snapshot
from extproc.replay.arrival import Arrival
from extproc.replay.policy import Policy


class Random(Policy):
    """Any endpoint."""

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        """As in `Policy`."""
        return draw.choice(endpoints.addresses)


class RoundRobin(Policy):
    """One after the other."""

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        """As in `Policy`."""
        self._turn += 1
        return endpoints.addresses[self._turn % len(endpoints)]


class LeastInFlight(Policy):
    """The endpoint with the fewest requests of our own in flight, ties by chance."""

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        """As in `Policy`."""
        return endpoints.addresses[least(endpoints.in_flight, draw)]


def least(counts: np.ndarray[tuple[int], np.dtype[np.int64]], draw: random.Random) -> int:
    """Index of the least count, ties by chance."""
    lowest = np.flatnonzero(counts == counts.min())
    return int(lowest[draw.randrange(len(lowest))]) if len(lowest) > 1 else int(lowest[0])


def one_of_the_highest(values: Sequence[float], draw: random.Random) -> int:
    """Index of the highest value, ties by chance; sums of fractions that differ by rounding are equal."""
    least = max(values) - 1e-9
    return draw.choice([at for at, value in enumerate(values) if value >= least])
