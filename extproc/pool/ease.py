"""Slow start: an endpoint that has just joined gets its share of the requests eased in.

Its caches are empty, its graphs not captured, its code not warm: all that a full share at once would do is
queue. The share grows from `least` to 1 in a straight line over the window, as Envoy's slow start does with
an aggression of 1 (`Cluster.SlowStartConfig`). Where all are new, those that have been there longest get a
full share: there is nobody else.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_SHORTEST = 1e-9
"""Seconds: a window of 0 is none."""


class SlowStart(NamedTuple):
    """Settings. Seconds; a window of 0 switches it off."""

    window: float = 30.0
    cold_window: float = 120.0
    """For endpoints on nodes that are not prepared."""
    least: float = 0.1
    """Share that an endpoint begins with, of 1."""


class Easing:
    """When the endpoints of one pool joined. Times are seconds of one clock."""

    def __init__(self) -> None:
        self._settings = SlowStart()
        self._members: tuple[str, ...] = ()
        self._joined: dict[str, tuple[float, bool]] = {}
        self._since = np.zeros(0)
        self._windows = np.zeros(0)
        self._until = -np.inf

    def use(self, settings: SlowStart) -> None:
        """By these settings from now on; it holds for those that are being eased in, too."""
        self._settings = settings
        joined = [self._joined.get(address, (-np.inf, False)) for address in self._members]
        self._since = np.array([at for at, _ in joined])
        self._windows = np.array([settings.cold_window if cold else settings.window for _, cold in joined])
        self._until = float(np.max(self._since + self._windows, initial=-np.inf))

    def set_members(self, members: tuple[str, ...], now: float | None, cold: Collection[str]) -> None:
        """These are the endpoints. Those that are new join at `now`; None: they need no easing. One that is
        cold no more goes on in the shorter window."""
        known = set(self._members)
        self._joined = {
            address: (self._joined[address][0], address in cold)
            for address in members
            if address in self._joined
        }
        if now is not None:
            for address in members:
                if address not in known:
                    self._joined[address] = (now, address in cold)
        self._members = members
        self.use(self._settings)

    def shares(self, now: float) -> NDArray[np.float64] | None:
        """Share of each endpoint, above 0 and at most 1, which one has at least; None: all are 1."""
        if now >= self._until:
            return None
        least = self._settings.least
        begun = (now - self._since) / np.maximum(self._windows, _SHORTEST)
        shares: NDArray[np.float64] = least + (1.0 - least) * np.clip(begun, 0.0, 1.0)
        shares /= shares.max()
        return None if shares.min() == 1.0 else shares
