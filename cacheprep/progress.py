"""How far a fetch or a verification is: on standard error, as bars on a terminal and JSON lines elsewhere;
and noted for who looks at the disk."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, NamedTuple

from cacheprep.store.progress import Progress
from cacheprep.transfer.counters import Counters, Phase, Snapshot
from cacheprep.transfer.rate import Rate

BARS_S = 0.2
"""Between two looks of the bars."""
LOOK_S = 0.5
"""Between two looks for a JSON line."""
LINE_S, LINE_SHARE = 30.0, 0.05
"""A JSON line is due after so many seconds, or so much of all bytes, whichever comes first."""
NOTE_S = 2.0
"""Between two notes for who looks from elsewhere."""


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
        self._rate = Rate()

    def due(self, snapshot: Snapshot, now: float, *, last: bool = False) -> Line | None:
        """A line, if it is time for one: a new phase, `LINE_S`, `LINE_SHARE`, or the last."""
        step = max(1, int(snapshot.bytes_total * LINE_SHARE))
        moved = snapshot.bytes_done - self._said >= step
        another = snapshot.phase is not self._phase
        if another:
            # What is hashed from the disk says nothing of how fast the source is.
            self._rate = Rate()
        rate = self._rate.over(snapshot.bytes_done, now)
        if not (last or another or now - self._said_at >= LINE_S or moved):
            return None
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

    lines = Lines(what, time.monotonic())

    def report(last: bool = False) -> None:
        if (line := lines.due(counters.snapshot(), time.monotonic(), last=last)) is not None:
            write(line._asdict())

    try:
        with nullcontext() if quiet else _repeating(report, LOOK_S):
            yield lambda text: write({"event": "note", "message": text})
    finally:
        if not quiet:
            report(last=True)


@contextmanager
def noting(counters: Counters, note: Callable[[Progress], None]) -> Iterator[None]:
    """Note how far a fetch is until the block ends, from a thread of its own; it then stands still.

    Args:
        counters: what is noted.
        note: keeps it where others look; must not raise.
    """
    rate = Rate()

    def say() -> None:
        done = counters.snapshot().bytes_done
        note(Progress(done, int(rate.over(done, time.monotonic()))))

    say()
    try:
        with _repeating(say, NOTE_S):
            yield
    finally:
        note(Progress(counters.snapshot().bytes_done, 0))


@contextmanager
def _repeating(act: Callable[[], None], seconds: float) -> Iterator[None]:
    """`act` every so many seconds, from a thread that has ended when the block has."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            act()

    thread = threading.Thread(target=repeat, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _bars(counters: Counters, what: str, quiet: bool) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.fields[files]}"),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, disable=quiet, transient=True, auto_refresh=False) as bars:
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

        try:
            with _repeating(show, BARS_S):
                yield lambda text: bars.console.print(text, markup=False, highlight=False)
        finally:
            show()
