"""How fast a transfer goes, when a connection is stalled, when to try again. Pure: the clock is passed
in, seconds."""

from __future__ import annotations

FIRST_RETRY_S, LONGEST_RETRY_S = 0.5, 30.0
LONGEST_ASKED_S = 120.0
"""A source's Retry-After is heeded up to this."""
BURST_S = 0.25
"""Seconds' worth of bytes that may come at once under a bandwidth limit."""


def retry_delay(failures: int, asked: float | None, chance: float) -> float:
    """Seconds until the next try.

    Exponential with full jitter but for the first half, so that many nodes do not return together
    ("Exponential Backoff And Jitter", AWS Architecture Blog, 2015; "equal jitter").

    Args:
        failures: in a row, 1 or more.
        asked: seconds that the source asked for, None if it did not.
        chance: uniform in [0, 1).
    """
    longest = min(LONGEST_RETRY_S, FIRST_RETRY_S * 2.0 ** min(failures - 1, 16))
    own = longest / 2 + longest / 2 * chance
    return own if asked is None else max(own, min(asked, LONGEST_ASKED_S))


class Bandwidth:
    """A token bucket that lets debts be made: what came is taken at once, and paid by waiting."""

    __slots__ = ("_at", "_rate", "_tokens")

    def __init__(self, rate: float) -> None:
        """`rate` in bytes per second, above 0."""
        self._rate = rate
        self._tokens = rate * BURST_S
        self._at: float | None = None

    def took(self, amount: int, now: float) -> float:
        """Bytes came at `now`. Returns seconds to wait before asking for more."""
        if self._at is not None:
            self._tokens = min(self._rate * BURST_S, self._tokens + (now - self._at) * self._rate)
        self._at = now if self._at is None else max(now, self._at)
        self._tokens -= amount
        return max(0.0, -self._tokens / self._rate)


class Pulse:
    """Whether a connection is alive: it must bring some bytes in the time for which it is waited for.

    Time in which we do not read (a bandwidth limit, a slow disk) does not count against it.
    """

    __slots__ = ("_bytes", "_least", "_since", "_waited", "_window")

    def __init__(self, window_s: float, least_bytes_per_s: float) -> None:
        self._window = window_s
        self._least = least_bytes_per_s * window_s
        self._waited = 0.0
        self._bytes = 0
        self._since: float | None = None

    def begin(self) -> None:
        """Another request: what the last one did no longer counts."""
        self._waited, self._bytes, self._since = 0.0, 0, None

    def waiting(self, now: float) -> None:
        """From now on the source is waited for."""
        self._since = now

    def got(self, amount: int, now: float) -> None:
        """Bytes came; from now on it is not waited for."""
        if self._since is not None:
            self._waited += now - self._since
            self._since = None
        self._bytes += amount
        if self._bytes >= self._least:
            self._waited, self._bytes = 0.0, 0

    def stalled(self, now: float) -> bool:
        """Whether it was waited for throughout a window and too few bytes came."""
        since = self._since
        waited = self._waited + (now - since if since is not None else 0.0)
        return waited >= self._window
