"""Readers of trace files: one module per format, chosen by what the first line looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from extproc.replay.arrival import Trace
from extproc.replay.traces import azure, bodies, mooncake, recorded, taubench
from extproc.replay.traces.lines import TraceError, first_line


class Reader(Protocol):
    """A module that reads one format."""

    NAME: str

    def recognise(self, line: bytes) -> bool:
        """Whether a file that begins with this line is of the format."""
        ...

    def read(self, path: Path, block_tokens: int) -> Trace:
        """The trace, with engine blocks of `block_tokens` tokens where the format does not fix them."""
        ...


READERS: tuple[Reader, ...] = (mooncake, azure, taubench, recorded, bodies)


def read(path: Path, block_tokens: int = 64, name: str = "") -> Trace:
    """Read a trace; `name` is one of the readers' names, empty to tell it from the first line.

    Lines that cannot be used are in the trace's `problems`, the rest is kept. Raises `TraceError` if the file
    cannot be read, its format is not known, or no line is usable.
    """
    line = first_line(path)
    for reader in READERS:
        if name == reader.NAME if name else reader.recognise(line):
            trace = reader.read(path, block_tokens)
            if not trace.arrivals:
                first = f"; the first: {trace.problems[0]}" if trace.problems else ""
                raise TraceError(f"{path}: no usable line among {len(trace.problems)}{first}")
            return trace
    names = ", ".join(reader.NAME for reader in READERS)
    raise TraceError(f"{path}: the first line is of none of the formats {names}")
