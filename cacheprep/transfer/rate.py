"""How fast something goes, from counts that are read now and then. Pure: the clock is passed in, seconds."""

from __future__ import annotations

from collections import deque

WINDOW_S = 10.0
"""Over how long a rate is taken: long enough that ranges which end together do not show, short enough that a
source which has become slow does."""


class Rate:
    """Bytes per second over the last `WINDOW_S`, or since the first count if that is less."""

    def __init__(self) -> None:
        self._counts: deque[tuple[float, int]] = deque()

    def over(self, done: int, now: float) -> float:
        """The rate, once `done` bytes have come in all; 0 at the first count.

        Fewer bytes than before were thrown away: from there on it is measured anew.
        """
        counts = self._counts
        if counts and done < counts[-1][1]:
            counts.clear()
        counts.append((now, done))
        # The last one at or before the window's begin stays: from it on the rate is taken.
        while len(counts) > 2 and counts[1][0] <= now - WINDOW_S:
            counts.popleft()
        began, before = counts[0]
        return (done - before) / (now - began) if now > began else 0.0
