"""What engines say about their own load, joined with what was sent to them since."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

REPORT_LIFETIME = 10.0
"""Seconds that a report counts. Idle engines are read each 5 s; when that stops, an old figure must not mark
an endpoint as busy for ever."""


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
        self._addresses: tuple[str, ...] = ()
        self._index: dict[str, int] = {}
        self._reported = np.zeros(0, dtype=np.int64)
        self._picks = np.zeros(0, dtype=np.int64)
        self._made = np.zeros(0, dtype=np.float64)

    def set_addresses(self, addresses: tuple[str, ...]) -> None:
        """These are the pool's endpoints, in the order of the arrays. Those that left are forgotten."""
        before = np.array([self._index.get(address, -1) for address in addresses], dtype=np.intp)
        kept = before >= 0
        reported, picks = np.zeros((2, len(addresses)), dtype=np.int64)
        made = np.full(len(addresses), -np.inf)
        reported[kept], picks[kept] = self._reported[before[kept]], self._picks[before[kept]]
        made[kept] = self._made[before[kept]]
        self._reported, self._picks, self._made = reported, picks, made
        self._addresses = addresses
        self._index = {address: index for index, address in enumerate(addresses)}

    def put(self, address: str, running_plus_waiting: int, picks: int, now: float) -> None:
        """`address` reported this many requests at `now`, when `picks` were counted on it in all.

        Ignored for an address that is not in the pool.
        """
        index = self._index.get(address)
        if index is not None:
            self._reported[index] = max(0, running_plus_waiting)
            self._picks[index] = picks
            self._made[index] = now

    def load(self, own: NDArray[np.int64], picks: NDArray[np.int64], now: float) -> NDArray[np.int64]:
        """In-flight requests by the rule, from the own counts and the picks counted so far."""
        age = now - self._made
        fresh = (age >= 0.0) & (age <= REPORT_LIFETIME)
        load: NDArray[np.int64] = np.where(
            fresh, np.maximum(own, self._reported + (picks - self._picks)), own
        )
        return load
