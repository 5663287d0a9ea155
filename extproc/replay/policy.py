"""What one router replica routes by, and all that it is told.

A policy learns only what the router it stands for would: its own picks and the ends of their streams, and, if
it `reads_reports`, what engines publish about themselves each second. Time is in seconds of the trace.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import ClassVar

from extproc.pool.ease import SlowStart
from extproc.pool.pool import Pool
from extproc.pool.reports import EngineReport
from extproc.pool.snapshot import Snapshot
from extproc.replay.arrival import Arrival, cut
from extproc.routing import Strategy
from extproc.routing.prefix_aware import PrefixAware


class Policy:
    """Base of every policy: knows nothing, hears everything."""

    reads_reports: ClassVar[bool] = False
    """Whether the router it stands for reads the engines' metrics. If so, the snapshot's in-flight counts
    take them in as well."""
    hears_picks: ClassVar[bool] = False
    """Whether replicas can share their picks."""

    uncached: float = 0.0
    """Tokens that the endpoint of the last pick will have to compute, if the policy estimates them."""

    def attach(self, pool: Pool) -> None:
        """This is the pool of the replica that it routes for."""

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
    hears_picks = True

    def __init__(self, strategy: Strategy, slow_start: SlowStart | None = None) -> None:
        """`slow_start`: how engines that join are eased in; None: as by default."""
        self.strategy = strategy
        self._slow_start = SlowStart() if slow_start is None else slow_start
        self._pool: Pool | None = None

    def attach(self, pool: Pool) -> None:
        """As in `Policy`."""
        pool.use(self._slow_start)
        self._pool = pool

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        """As in `Policy`."""
        keys = request.keys if self.strategy.wants_keys else None
        if keys is not None and self.strategy.prefix_length is not None:
            keys = cut(keys, self.strategy.prefix_length)
        pick = self.strategy.pick(keys, endpoints, draw)
        self.uncached = pick.uncached
        return pick.ranked[0] if pick.ranked else ""

    def heard(self, picks: list[tuple[Arrival, str, float]], now: float) -> None:
        """As in `Policy`."""
        if self._pool is not None and isinstance(self.strategy, PrefixAware):
            for request, address, at in picks:
                self._pool.heard(address, self.strategy.learn(request.keys, address), at)


Make = Callable[[], Policy]
"""Makes the policy of one replica: replicas share no state."""
