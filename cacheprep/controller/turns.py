"""Whose turn it is: which endpoints are to be looked at, and when. Pure: monotonic seconds are passed in.

An endpoint about which nothing was heard for long is looked at at once. While changes pour in it rests for
`SHARE` times as long as its plan took to make, so that the controller cannot keep a CPU busy.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

SHARE = 10.0
"""A plan that took 50 ms is followed by 500 ms of rest for its endpoint."""
LEAST_SECONDS = 0.25
"""Between two looks at an endpoint: changes that follow one another closely are taken together."""
FIRST_BACK_OFF, LONGEST_BACK_OFF = 1.0, 60.0
"""Seconds until the next try after a failure, doubling."""
RESYNC_SECONDS = 900.0
"""An endpoint is looked at so often though nothing was heard of it. Costs no request if all is as it should
be."""

T = TypeVar("T")


class Turns(Generic[T]):
    """Each that is known has one time at which it is next; the earliest wins."""

    def __init__(self) -> None:
        self._at: dict[T, float] = {}
        self._heap: list[tuple[float, int, T]] = []
        self._rest: dict[T, float] = {}
        self._failures: dict[T, int] = {}
        self._number = 0

    def ask(self, who: T, at: float) -> None:
        """Look at it at this time, or as soon after it as its rest is over."""
        at = max(at, self._rest.get(who, at))
        if at >= self._at.get(who, at + 1):
            return
        self._at[who] = at
        self._number += 1
        heapq.heappush(self._heap, (at, self._number, who))

    def next_at(self) -> float | None:
        """When the next one is due; None if nobody is."""
        while self._heap and self._at.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> T | None:
        """The one that is due, which is then not asked for any more; None if nobody is."""
        at = self.next_at()
        if at is None or at > now:
            return None
        who = heapq.heappop(self._heap)[2]
        del self._at[who]
        return who

    def looked(self, who: T, planning: float, now: float, wake_at: float | None) -> None:
        """It was looked at, without failure.

        Args:
            who: of it.
            planning: seconds that its plan took to make.
            now: when the look ended.
            wake_at: when it is to be looked at again; None: as everybody.
        """
        self._failures.pop(who, None)
        self._rest[who] = now + max(LEAST_SECONDS, SHARE * planning)
        self.ask(who, min(now + RESYNC_SECONDS, wake_at if wake_at is not None else now + RESYNC_SECONDS))

    def failed(self, who: T, now: float) -> float:
        """It could not be looked at to the end. Returns seconds until it is tried again, whatever is heard of
        it meanwhile."""
        count = self._failures[who] = self._failures.get(who, 0) + 1
        wait = min(LONGEST_BACK_OFF, FIRST_BACK_OFF * 2.0 ** min(count - 1, 16))
        self._rest[who] = now + wait
        self._at.pop(who, None)
        self.ask(who, now + wait)
        return wait

    def forget(self, who: T) -> None:
        """It is gone."""
        for known in (self._at, self._rest, self._failures):
            known.pop(who, None)
