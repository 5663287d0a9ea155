"""How far a fetch or a verification is, on standard error: bars on a terminal, JSON lines elsewhere."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from cacheprep.transfer.counters import Counters, Phase, Snapshot

BARS_S = 0.2
"""Between two looks of the bars."""
LOOK_S = 0.5
"""Between two looks for a JSON line."""
LINE_S, LINE_SHARE = 30.0, 0.05
"""A JSON line is due after so many seconds, or so much of all bytes, whichever comes first."""
RATE_S = 2.0
"""Over how long a rate is taken, at least, in a JSON line."""


class Line(NamedTuple):
    """What a JSON line of progress says."""

    event: str
    what: str
    phase: str
    bytes_done: int
    bytes_total: int
    bytes_fetched: int
    files_done: int
    files_total: int
    retries: int
    bytes_per_s: int
    eta_s: int | None
    """None where nothing moves."""


class Lines:
    """Decides when a JSON line is due, and what it says. Pure: the clock is passed in, seconds."""

    def __init__(self, what: str, now: float) -> None:
        self._what = what
        self._said_at, self._said = now, -1
        self._phase: Phase | None = None
        self._rate_from: tuple[float, int] | None = None

    def due(self, snapshot: Snapshot, now: float, *, last: bool = False) -> Line | None:
        """A line, if it is time for one: a new phase, `LINE_S`, `LINE_SHARE`, or the last."""
        step = max(1, int(snapshot.bytes_total * LINE_SHARE))
        moved = snapshot.bytes_done - self._said >= step
        if not (last or snapshot.phase is not self._phase or now - self._said_at >= LINE_S or moved):
            return None
        rate = self._rate(snapshot, now)
        left = snapshot.bytes_total - snapshot.bytes_done
        self._said_at, self._said, self._phase = now, snapshot.bytes_done, snapshot.phase
        return Line(
            "progress",
            self._what,
            snapshot.phase,
            snapshot.bytes_done,
            snapshot.bytes_total,
            snapshot.bytes_fetched,
            snapshot.files_done,
            snapshot.files_total,
            snapshot.retries,
            int(rate),
            int(left / rate) if rate > 0 else None,
        )

    def _rate(self, snapshot: Snapshot, now: float) -> float:
        before = self._rate_from
        if before is None or snapshot.phase is not self._phase or snapshot.bytes_done < before[1]:
            self._rate_from = now, snapshot.bytes_done
            return 0.0
        seconds = now - before[0]
        rate = (snapshot.bytes_done - before[1]) / seconds if seconds > 0 else 0.0
        if seconds >= RATE_S:
            self._rate_from = now, snapshot.bytes_done
        return rate


@contextmanager
def reporting(
    counters: Counters, what: str, *, as_json: bool, quiet: bool = False
) -> Iterator[Callable[[str], None]]:
    """Report on standard error until the block ends, from a thread of its own.

    Args:
        counters: what is reported.
        what: names it, for a person.
        as_json: JSON lines even on a terminal.
        quiet: no progress, only what is told.

    Yields:
        a function that says a sentence there.
    """
    if sys.stderr.isatty() and not as_json:
        with _bars(counters, what, quiet) as tell:
            yield tell
        return

    def write(event: dict[str, Any]) -> None:
        sys.stderr.write(json.dumps(event, ensure_ascii=False) + "\n")
        sys.stderr.flush()

    ended = threading.Event()
    lines = Lines(what, time.monotonic())

    def report() -> None:
        while not ended.wait(LOOK_S):
            if (line := lines.due(counters.snapshot(), time.monotonic())) is not None:
                write(line._asdict())

    thread = threading.Thread(target=report, name="progress", daemon=True)
    if not quiet:
        thread.start()
    try:
        yield lambda text: write({"event": "note", "message": text})
    finally:
        ended.set()
        if not quiet:
            thread.join()
            line = lines.due(counters.snapshot(), time.monotonic(), last=True)
            if line is not None:
                write(line._asdict())


@contextmanager
def _bars(counters: Counters, what: str, quiet: bool) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[files]}"),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    ended = threading.Event()
    with Progress(*columns, console=console, disable=quiet, transient=True, auto_refresh=False) as bars:
        task = bars.add_task(what, total=None, files="")

        def show() -> None:
            now = counters.snapshot()
            files = f"{now.files_done}/{now.files_total} files" if now.files_total else ""
            if now.phase is Phase.SYNCING:
                files = f"{now.files_synced}/{now.files_total} files on disk"
            bars.update(
                task,
                description=f"{now.phase}",
                total=now.bytes_total or None,
                completed=now.bytes_done,
                files=files,
            )
            bars.refresh()

        def report() -> None:
            while not ended.wait(BARS_S):
                show()

        thread = threading.Thread(target=report, name="progress", daemon=True)
        thread.start()
        try:
            yield lambda text: bars.console.print(text, markup=False, highlight=False)
        finally:
            ended.set()
            thread.join()
            show()
