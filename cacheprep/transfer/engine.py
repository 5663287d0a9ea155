"""Fetch the files of a listing into a directory: many ranges at once, hashed on the way.

One thread per connection, and the thread that calls `transfer` watches them. A connection keeps to one
file, from its start to its end, as long as there are files that nobody has begun; so bytes are hashed
while they are in memory. When there are none left, it helps with the file that has most to come.

A connection that brings too little for too long is given up: its thread may hang in a library for ever,
so it is left behind, another goes on where it stopped, and what it may still bring is not written.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from cacheprep.failures import Failure, Reason
from cacheprep.listing import File, Listing
from cacheprep.sources.source import Source, comes_whole
from cacheprep.store.root import os_failure
from cacheprep.transfer.counters import Counters, Phase
from cacheprep.transfer.journal import Journal
from cacheprep.transfer.pace import Bandwidth, Pulse, retry_delay
from cacheprep.transfer.partial import PartialFile, RangeWriter, Revoked
from cacheprep.transfer.pieces import Pieces
from cacheprep.transfer.ranges import Range, cut

TRANSIENT = frozenset((Reason.SOURCE_UNAVAILABLE,))
"""Reasons for which a range is asked for again."""
WATCH_S = 0.25
"""Between two looks of the watchdog."""
CHECK_THREADS = 4
LEAVE_S = 2.0
"""For how long threads are waited for when the transfer ends before its time."""
PROGRESS = 1 << 20
"""Bytes that must come for a connection's failures to be forgotten."""
WRONG_TWICE = 2
"""A file is fetched once more if a digest is wrong: a bit may flip on the way. Then the source is wrong."""


class Settings(NamedTuple):
    """How a transfer is done."""

    connections: int = 16
    """At once; 1 or more."""
    range_bytes: int = 32 << 20
    """Of a range, at most: what one connection loses when the process is killed."""
    attempts: int = 8
    """Failures in a row after which a range is given up."""
    stall_s: float = 30.0
    """A connection is given up if in so many seconds of waiting it brings less than `least_bytes_per_s`
    allows."""
    least_bytes_per_s: float = 4096.0
    bandwidth: float | None = None
    """Bytes per second of all connections together; None for no limit."""


class Edge(NamedTuple):
    """The clock, chance and cancellation, so that tests have their own."""

    canceled: threading.Event
    """Set by whoever wants the transfer to stop."""
    now: Callable[[], float] = time.monotonic
    chance: Callable[[], float] = random.random


def transfer(
    source: Source,
    listing: Listing,
    directory: str,
    journal: Journal,
    settings: Settings,
    edge: Edge,
    counters: Counters,
) -> list[str]:
    """Fetch what is missing of a listing's files.

    Args:
        source: where from.
        listing: what.
        directory: where to; has every file at its full length (`reservation.reserve`).
        journal: of this directory and listing; what its claims prove is not fetched again.
        settings: how.
        edge: clock, chance, cancellation.
        counters: counts what happens.

    Returns:
        the sha256 of each file, in the order of the listing. Every digest of the listing was found right.

    Raises:
        Failure: any reason; the journal has what came until then.
    """
    return _Transfer(source, listing, directory, journal, settings, edge, counters).run()


class _File:
    """A file of the transfer and what is left of it."""

    __slots__ = ("failures", "index", "partial", "path", "pending", "unfinished")

    def __init__(self, index: int, path: str, pending: deque[Range], partial: PartialFile | None) -> None:
        self.index = index
        self.path = path
        self.pending = pending
        """Ranges that nobody has taken."""
        self.unfinished = len(pending)
        """Ranges that are not whole."""
        self.partial = partial
        """None until the first range is taken."""
        self.failures = 0


class _Connection:
    """A thread and the range that it fetches."""

    __slots__ = ("failures", "file", "pulse", "thread", "writer")

    def __init__(self, pulse: Pulse) -> None:
        self.pulse = pulse
        self.file: _File | None = None
        self.writer: RangeWriter | None = None
        self.failures = 0
        self.thread: threading.Thread | None = None


class _Transfer:
    def __init__(
        self,
        source: Source,
        listing: Listing,
        directory: str,
        journal: Journal,
        settings: Settings,
        edge: Edge,
        counters: Counters,
    ) -> None:
        self._source, self._listing, self._directory = source, listing, directory
        self._journal, self._settings, self._edge, self._counters = journal, settings, edge, counters
        self._pieces = Pieces(settings.connections)
        self._sha256: list[str] = [""] * len(listing.files)
        self._left = len(listing.files)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._error: BaseException | None = None
        self._fresh: list[_File] = []
        self._begun: dict[int, _File] = {}
        self._connections: set[_Connection] = set()
        self._abandoned = 0
        self._limit = Bandwidth(settings.bandwidth) if settings.bandwidth else None
        self._limit_lock = threading.Lock()

    def run(self) -> list[str]:
        self._counters.set(phase=Phase.CHECKING)
        try:
            self._prepare()
            self._counters.set(phase=Phase.FETCHING)
            for _ in range(min(self._settings.connections, self._ranges())):
                self._start(_Connection(self._pulse()))
            self._watch()
        finally:
            self._leave()
        if self._error is not None:
            raise self._error
        return self._sha256

    # Before the first byte.

    def _prepare(self) -> None:
        """Check what an earlier run claims, and list what is left to fetch."""
        files = self._listing.files
        claims = self._journal.read([file.size for file in files])

        def look(index: int) -> _File:
            file = files[index]
            path = os.path.join(self._directory, file.name)
            if index not in claims and file.size:
                return _File(index, path, self._cut(file, [Range(0, file.size)]), None)
            try:
                partial = PartialFile(path, file, self._pieces)
                missing = partial.check(claims.get(index, ()), self._checked)
                if missing and comes_whole(file):
                    partial.forget()
                    missing = [Range(0, file.size)]
            except OSError as error:
                raise os_failure(error, f"file {file.name!r}") from error
            kept = file.size - sum(range_.length for range_ in missing)
            self._counters.add(bytes_done=kept, bytes_kept=kept)
            left = _File(index, path, self._cut(file, missing), partial)
            if not missing:
                self._complete(left)
            return left

        # Most often there is nothing to read, and then threads would only cost time.
        with ThreadPoolExecutor(CHECK_THREADS, "check") as pool:
            found = list((pool.map if claims else map)(look, range(len(files))))
        # The largest last: it is taken from the end, so that no large file is left alone at the end.
        waiting = [file for file in found if file.pending]
        self._fresh = sorted(waiting, key=lambda file: (files[file.index].size, -file.index))

    def _cut(self, file: File, ranges: list[Range]) -> deque[Range]:
        return deque(ranges if comes_whole(file) else cut(ranges, self._settings.range_bytes))

    def _checked(self, _: int) -> None:
        if self._edge.canceled.is_set():
            raise Failure(Reason.CANCELED, "stopped while checking what an earlier run left")

    def _ranges(self) -> int:
        return sum(len(file.pending) for file in [*self._fresh, *self._begun.values()])

    # The thread that watches.

    def _watch(self) -> None:
        idle = 0
        while not self._stop.wait(WATCH_S):
            if self._edge.canceled.is_set():
                self._fail(Failure(Reason.CANCELED, "stopped; run it again to go on where it stopped"))
                return
            now = self._edge.now()
            with self._lock:
                stalled = [connection for connection in self._connections if connection.pulse.stalled(now)]
                idle = 0 if self._connections else idle + 1
            if idle > 1:
                raise AssertionError(f"{self._left} files are left and no connection works on them")
            for connection in stalled:
                self._give_up(connection)

    def _give_up(self, connection: _Connection) -> None:
        """Leave a stalled connection's thread behind and go on with another."""
        writer = connection.writer
        if writer is None:
            return
        try:
            rest = writer.revoke()
        except Revoked:
            return  # It came to its end meanwhile.
        with self._lock:
            self._connections.discard(connection)
        self._abandoned += 1
        self._counters.add(stalls=1, retries=1, connections=-1)
        problem = (
            f"brought less than {self._settings.least_bytes_per_s:g} bytes/s for {self._settings.stall_s:g} s"
        )
        failure = Failure(Reason.SOURCE_UNAVAILABLE, f"file {rest.partial.file.name!r}: the source {problem}")
        successor = _Connection(self._pulse())
        successor.file, successor.writer = connection.file, rest
        successor.failures = connection.failures + 1
        if successor.failures >= self._settings.attempts or self._abandoned > 4 * self._settings.connections:
            self._fail(failure)
        else:
            self._start(successor)

    def _leave(self) -> None:
        """Stop every thread, or take the pen out of its hand; close every file."""
        self._stop.set()
        end = time.monotonic() + LEAVE_S
        with self._lock:
            left = list(self._connections)
        for connection in left:
            if connection.thread is not None:
                connection.thread.join(max(0.0, end - time.monotonic()))
            if (writer := connection.writer) is not None:
                try:
                    writer.revoke()
                except Revoked:
                    continue
        for file in [*self._fresh, *self._begun.values()]:
            if file.partial is not None:
                file.partial.close()

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error
        self._stop.set()

    # Connections.

    def _pulse(self) -> Pulse:
        return Pulse(self._settings.stall_s, self._settings.least_bytes_per_s)

    def _start(self, connection: _Connection) -> None:
        # Daemons: one that hangs must not keep the process from ending.
        connection.thread = threading.Thread(target=self._work, args=(connection,), name="fetch", daemon=True)
        with self._lock:
            self._connections.add(connection)
        self._counters.add(connections=1)
        connection.thread.start()

    def _work(self, connection: _Connection) -> None:
        try:
            while not self._stop.is_set() and self._take(connection):
                self._fetch(connection)
        except Revoked:
            return
        except BaseException as error:
            if connection.writer is not None and connection.writer.revoked:
                return  # What a thread that was left behind runs into is of no interest.
            self._fail(error)
        with self._lock:
            if connection in self._connections:
                self._connections.discard(connection)
                self._counters.add(connections=-1)

    def _take(self, connection: _Connection) -> bool:
        """Give a connection its next range; False if there is none left to take."""
        if connection.writer is not None:
            return True  # What another left.
        with self._lock:
            file = connection.file
            if file is None or not file.pending:
                if self._fresh:
                    file = self._fresh.pop()
                    self._begun[file.index] = file
                else:
                    begun = self._begun.values()
                    file = max(begun, key=lambda other: len(other.pending), default=None)
                if file is None or not file.pending:
                    return False
            connection.file = file
            range_ = file.pending.popleft()
            if file.partial is None:
                try:
                    file.partial = PartialFile(file.path, self._listing.files[file.index], self._pieces)
                except OSError as error:
                    raise os_failure(error, f"file {self._listing.files[file.index].name!r}") from error
            connection.failures = 0
            connection.writer = file.partial.writer(range_)
        return True

    def _fetch(self, connection: _Connection) -> None:
        """Bring the connection's range, with as many tries as it takes."""
        writer, file = connection.writer, connection.file
        assert writer is not None  # noqa: S101 - `_take` has set it
        assert file is not None  # noqa: S101 - `_take` has set it
        if connection.failures:
            self._pause(retry_delay(connection.failures, None, self._edge.chance()))
        while writer.at < writer.range.end and not self._stop.is_set():
            at = writer.at
            try:
                self._read(connection, writer)
            except Failure as failure:
                if writer.revoked or failure.reason not in TRANSIENT:
                    raise
                connection.failures = 1 if writer.at - at >= PROGRESS else connection.failures + 1
                if connection.failures >= self._settings.attempts:
                    raise
                self._counters.add(retries=1)
                self._pause(retry_delay(connection.failures, failure.retry_after_s, self._edge.chance()))
        if writer.at == writer.range.end:
            claim = writer.finish()
            connection.writer = None
            if claim.range.length < writer.partial.file.size:
                self._journal.whole(file.index, claim)
                self._finished(file)
            elif self._complete(file):
                # Not before: digests that came with the bytes are not there to be compared by a later run.
                self._journal.whole(file.index, claim)

    def _read(self, connection: _Connection, writer: RangeWriter) -> None:
        pulse, now = connection.pulse, self._edge.now
        pulse.begin()
        pulse.waiting(now())
        try:
            with self._source.open(writer.partial.file, writer.at, writer.range.end) as body:
                if body.digests:
                    writer.told(body.digests)
                while room := writer.room():
                    amount = body.readinto(room)
                    pulse.got(amount, now())
                    if not amount:
                        break
                    try:
                        writer.took(amount)
                    except OSError as error:
                        raise os_failure(error, f"file {writer.partial.file.name!r}") from error
                    self._counters.came(amount)
                    if self._limit is not None:
                        with self._limit_lock:
                            delay = self._limit.took(amount, now())
                        self._pause(delay)
                    if self._stop.is_set():
                        return
                    pulse.waiting(now())
        finally:
            pulse.got(0, now())
        if writer.at < writer.range.end:
            missing = writer.range.end - writer.at
            raise Failure(
                Reason.SOURCE_UNAVAILABLE,
                f"file {writer.partial.file.name!r}: the source sent {missing} too few",
            )

    def _pause(self, seconds: float) -> None:
        if seconds > 0:
            self._stop.wait(seconds)

    # Files.

    def _finished(self, file: _File) -> None:
        with self._lock:
            file.unfinished -= 1
            whole = file.unfinished == 0
        if whole:
            self._complete(file)

    def _complete(self, file: _File) -> bool:
        """Every range is whole: compare. Returns whether the file is right; if not, it is fetched again."""
        partial = file.partial
        assert partial is not None  # noqa: S101 - it has ranges that are whole, or is empty
        try:
            found = partial.sha256()
        except Failure:
            file.failures += 1
            self._journal.drop(file.index)
            if file.failures >= WRONG_TWICE or not partial.file.size:
                raise
            self._again(file, partial)
            return False
        partial.close()
        with self._lock:
            self._sha256[file.index] = found
            self._begun.pop(file.index, None)
            self._left -= 1
            last = self._left == 0
        self._counters.add(files_done=1)
        if last:
            self._stop.set()
        return True

    def _again(self, file: _File, partial: PartialFile) -> None:
        partial.forget()
        size = partial.file.size
        self._counters.add(bytes_done=-size, retries=1)
        with self._lock:
            file.pending.extend(self._cut(partial.file, [Range(0, size)]))
            file.unfinished = len(file.pending)
            self._begun[file.index] = file
            idle = min(self._settings.connections - len(self._connections), len(file.pending) - 1)
        for _ in range(idle if self._counters.snapshot().phase is Phase.FETCHING else 0):
            self._start(_Connection(self._pulse()))
