"""What engines say about their own load, joined with what was sent to them since."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

REPORT_LIFETIME = 10.0
"""Seconds that a report counts. Idle engines are read each 5 s; when that stops, an old figure must not mark
an endpoint as busy for ever."""
_NOTHING = -(1 << 62)
"""Stands for no report: less than any load, whatever was picked since."""


class EngineReport(NamedTuple):
    """What an engine says of itself at one moment. Totals are since it began; 0 where it does not say."""

    running: int
    """Requests in the batch."""
    waiting: int
    """Requests in its queue."""
    kv_usage: float = 0.0
    """Fraction of KV cache blocks that running requests hold, 0 to 1."""
    computed_tokens: float = 0.0
    """Prompt tokens computed so far, those found in the cache not counted."""
    prefills: float = 0.0
    """Requests prefilled so far."""
    prefill_s: float = 0.0
    """Seconds spent in prefills so far."""
    queried_tokens: float = 0.0
    """Prompt tokens looked up in the prefix cache so far."""
    hit_tokens: float = 0.0
    """Of those, found."""


class EngineReports:
    """The last report of each endpoint of one pool, by the endpoint's index in the pool.

    The rule: load = max(own count, reported running + waiting + own picks since the report). A pick that
    has ended since still counts until the next report, so the figure errs on the busy side for one reading
    at most.
    """

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        # Reported load less the picks counted by then, so that all that a reading of the loads adds is picks.
        self._since = np.zeros(0, dtype=np.int64)
        self._made = np.zeros(0, dtype=np.float64)
        self._newest, self._stale_at = -np.inf, np.inf

    def set_addresses(self, addresses: tuple[str, ...]) -> None:
        """These are the pool's endpoints, in the order of the arrays. Those that left are forgotten."""
        before = np.array([self._index.get(address, -1) for address in addresses], dtype=np.intp)
        kept = before >= 0
        since = np.full(len(addresses), _NOTHING, dtype=np.int64)
        made = np.full(len(addresses), np.nan)
        since[kept], made[kept] = self._since[before[kept]], self._made[before[kept]]
        self._since, self._made = since, made
        self._index = {address: index for index, address in enumerate(addresses)}

    def put(self, address: str, running_plus_waiting: int, picks: int, now: float) -> None:
        """`address` reported this many requests at `now`, when `picks` were counted on it in all.

        Ignored for an address that is not in the pool.
        """
        index = self._index.get(address)
        if index is not None:
            self._since[index] = max(0, running_plus_waiting) - picks
            self._made[index] = now
            self._newest = max(self._newest, now)
            self._stale_at = min(self._stale_at, now + REPORT_LIFETIME)

    def load(self, own: NDArray[np.int64], picks: NDArray[np.int64], now: float) -> NDArray[np.int64]:
        """In-flight requests by the rule, from the own counts and the picks counted so far. Reports that are
        stale by `now`, or from its future, are dropped."""
        if not self._newest <= now <= self._stale_at:
            self._forget(now)
        load: NDArray[np.int64] = picks + self._since
        np.maximum(load, own, out=load)
        return load

    def _forget(self, now: float) -> None:
        """Drop what is stale at `now`, and what a clock that was set back has in its future."""
        age = now - self._made
        dropped = (age < 0.0) | (age > REPORT_LIFETIME)
        self._since[dropped], self._made[dropped] = _NOTHING, np.nan
        self._newest, self._stale_at = -np.inf, np.inf
        made = self._made[~np.isnan(self._made)]
        if len(made):
            self._newest = float(made.max())
            self._stale_at = float(made.min()) + REPORT_LIFETIME
