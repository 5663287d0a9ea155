"""Progress of the demo: bars on a terminal, plain lines elsewhere."""

from __future__ import annotations

from time import monotonic
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from extproc.demo.load import Outcome

LINE_EVERY_S = 10.0
"""Seconds between two plain lines of a phase."""


class PhaseProgress:
    """Shows the phases of an experiment on `console`; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description:<28}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[result]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._name = ""
        self._requests = 0
        self._done = 0
        self._failed = 0
        self._next_line = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bars.stop()

    def begin(self, name: str, requests: int) -> None:
        """Show a new phase of so many requests."""
        self._name, self._requests, self._done, self._failed = name, requests, 0, 0
        self._next_line = monotonic() + LINE_EVERY_S
        self._task = self._bars.add_task(name, total=requests, result="")
        if not self._console.is_terminal:
            self._console.print(f"{name}: {requests} requests")

    def advance(self, outcome: Outcome | None = None) -> None:
        """Count a request."""
        self._done += 1
        if outcome is not None and outcome.error:
            self._failed += 1
        if self._task is not None:
            failed = f"[red]{self._failed} failed" if self._failed else ""
            self._bars.update(self._task, advance=1, result=failed)
        if not self._console.is_terminal and monotonic() >= self._next_line:
            self._next_line += LINE_EVERY_S
            failed = f", {self._failed} failed" if self._failed else ""
            self._console.print(f"  {self._name}: {self._done}/{self._requests}{failed}")

    def end(self, result: str) -> None:
        """Show what the phase came to."""
        if self._task is not None:
            self._bars.update(self._task, result=result)
        if not self._console.is_terminal and result:
            self._console.print(f"  {self._name}: {result}")
