"""What one router replica routes by, and all that it is told.

A policy learns only what the router it stands for would: its own picks and the ends of their streams, and, if
it `reads_reports`, what engines publish about themselves each second. Time is in seconds of the trace.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ClassVar

from extproc.pool.reports import EngineReport
from extproc.pool.snapshot import Snapshot
from extproc.replay.arrival import Arrival
from extproc.replay.candidates.backlog import Work
from extproc.replay.candidates.least_growth import LeastGrowth
from extproc.routing import Strategy


class Policy:
    """Base of every policy: knows nothing, hears everything."""

    reads_reports: ClassVar[bool] = False
    """Whether the router it stands for reads the engines' metrics. If so, the snapshot's in-flight counts
    take them in as well."""
    hears_picks: ClassVar[bool] = False
    """Whether replicas can share their picks."""

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        """The address that gets the request; empty: none, it is refused. There is at least one endpoint."""
        raise NotImplementedError

    def ended(self, request: Arrival, address: str, now: float) -> None:
        """The response to a request of our own has ended."""

    def reported(self, address: str, report: EngineReport, now: float) -> None:
        """An engine's metrics were read."""

    def heard(self, picks: list[tuple[Arrival, str, float]], now: float) -> None:
        """Another replica's picks since it last told: request, address, time."""


class Serving(Policy):
    """A strategy that serves, as it is."""

    reads_reports = True

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        """As in `Policy`."""
        keys = request.keys if self.strategy.wants_keys else None
        ranked = self.strategy.pick(keys, endpoints, draw).ranked
        return ranked[0] if ranked else ""


class Learning(Policy):
    """A candidate, which is told what becomes of its picks."""

    reads_reports = True
    hears_picks = True

    def __init__(self, strategy: LeastGrowth) -> None:
        self.strategy = strategy
        self._works: dict[int, Work] = {}
        self._of: tuple[str, ...] = ()

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        """As in `Policy`."""
        if endpoints.addresses is not self._of:
            self._of = endpoints.addresses
            self.strategy.set_endpoints(self._of)
        placed = self.strategy.pick(request.keys, endpoints, draw, now)
        if placed.work is None:
            return ""
        self._works[id(request)] = placed.work
        return placed.pick.ranked[0]

    def ended(self, request: Arrival, address: str, now: float) -> None:
        """As in `Policy`."""
        self.strategy.ended(self._works.pop(id(request)), now)

    def reported(self, address: str, report: EngineReport, now: float) -> None:
        """As in `Policy`."""
        self.strategy.reported(address, report, now)

    def heard(self, picks: list[tuple[Arrival, str, float]], now: float) -> None:
        """As in `Policy`."""
        for request, address, at in picks:
            self.strategy.heard(request.keys, address, at)


Make = Callable[[], Policy]
"""Makes the policy of one replica: replicas share no state."""
