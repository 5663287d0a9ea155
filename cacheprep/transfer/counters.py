"""What a transfer has done so far, for progress and metrics. Counted from any thread, read from any."""

from __future__ import annotations

from enum import StrEnum
from threading import Lock
from typing import NamedTuple


class Phase(StrEnum):
    """What a fetch is at."""

    RESOLVING = "resolving"
    """The source is asked what it has."""
    WAITING = "waiting"
    """Another process fetches this cache, or too many fetch from this source."""
    CHECKING = "checking"
    """What an earlier run left is read and hashed."""
    FETCHING = "fetching"
    SYNCING = "syncing"
    """Files are being made durable."""
    DONE = "done"


class Snapshot(NamedTuple):
    """The counts at one moment."""

    phase: Phase
    bytes_total: int
    bytes_done: int
    """Of the cache: known to be right, or come and not yet known to be wrong."""
    bytes_fetched: int
    """That came from the source, also those that were thrown away."""
    bytes_kept: int
    """Of an earlier run that this one did not have to fetch."""
    files_total: int
    files_done: int
    """Whole and verified."""
    files_synced: int
    retries: int
    stalls: int
    """Connections given up by the watchdog; each is a retry too."""
    connections: int
    """Open at this moment."""


_START = Snapshot(Phase.RESOLVING, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


class Counters:
    """The counts of one fetch."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._now = _START

    def snapshot(self) -> Snapshot:
        """All counts, of one moment."""
        return self._now

    def set(self, **values: object) -> None:
        """Set counts to these values."""
        with self._lock:
            self._now = self._now._replace(**values)  # type: ignore[arg-type]

    def add(self, **amounts: int) -> None:
        """Add to counts."""
        with self._lock:
            now = self._now
            self._now = now._replace(**{name: getattr(now, name) + value for name, value in amounts.items()})

    def came(self, amount: int) -> None:
        """Bytes came from the source."""
        with self._lock:
            now = self._now
            self._now = now._replace(
                bytes_done=now.bytes_done + amount, bytes_fetched=now.bytes_fetched + amount
            )
