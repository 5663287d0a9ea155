"""Readers of trace files: one module per format, chosen by what the first line looks like."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from extproc.replay.arrival import Trace, from_zero
from extproc.replay.traces import azure, bodies, mooncake, recorded, taubench
from extproc.replay.traces.lines import TraceError, first_line

OUTPUT_TOKENS = 128
"""Length of an answer where the trace does not say it."""
MOST_DAYS = 31
"""Days from the first request to the last: more is a time in the wrong unit, and a replay without end."""


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


def joined(traces: Sequence[Trace]) -> Trace:
    """Several files of the same traffic as one trace, such as the logs of several routers.

    Their clocks must agree. Raises `TraceError` if they cannot be joined.
    """
    first = traces[0]
    sizes = sorted({trace.block_tokens for trace in traces})
    if len(sizes) > 1:
        raise TraceError(f"files cannot be joined: their blocks have {' and '.join(map(str, sizes))} tokens")
    arrivals, origin = from_zero(
        [one._replace(at=one.at + trace.origin) for trace in traces for one in trace.arrivals]
    )
    notes = list(dict.fromkeys(note for trace in traces for note in trace.notes))
    heads = [{arrival.keys.keys[0] for arrival in trace.arrivals if arrival.keys.keys} for trace in traces]
    for at, trace in enumerate(traces):
        others = set().union(*heads[:at], *heads[at + 1 :])
        if others and heads[at].isdisjoint(others):
            notes.append(
                f"No prompt in {trace.name} begins like one of the other files: are they logs with different "
                "secrets?"
            )
    whole = Trace(
        f"{first.name} and {len(traces) - 1} more" if len(traces) > 1 else first.name,
        arrivals,
        first.block_tokens,
        all(trace.has_prefixes for trace in traces),
        notes,
        [problem for trace in traces for problem in trace.problems],
        origin,
    )
    _refuse_too_long(whole, "the files together")
    return whole


def read(
    path: Path,
    block_tokens: int = 64,
    name: str = "",
    *,
    pool: str = "",
    output_tokens: int = OUTPUT_TOKENS,
) -> Trace:
    """Read a trace; `name` is one of the readers' names, empty to tell it from the first line.

    `pool` chooses the requests of one pool from a router's log. An answer whose length the trace does not say
    has `output_tokens`. Lines that cannot be used are in the trace's `problems`, the rest is kept. Raises
    `TraceError` if the file cannot be read, its format is not known, or nothing in it is usable.
    """
    line = first_line(path)
    reader = next((one for one in READERS if (name == one.NAME if name else one.recognise(line))), None)
    if reader is None:
        names = ", ".join(reader.NAME for reader in READERS)
        kind = "a binary file" if b"\0" in line else "the first line"
        raise TraceError(f"{path}: {kind} is of none of the formats {names}")
    if pool and reader is not recorded:
        raise TraceError(f"{path}: {reader.NAME} traces have no pools")
    with _without_collection():
        trace = recorded.read(path, block_tokens, pool) if pool else reader.read(path, block_tokens)
    if not trace.arrivals:
        raise TraceError(f"{path}: {_why_empty(trace)}")
    _refuse_too_long(trace, str(path))
    return _with_answers(trace, output_tokens)


@contextmanager
def _without_collection() -> Iterator[None]:
    """Collections of garbage, which look at all that was read so far and find none, take a third of the
    time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _refuse_too_long(trace: Trace, where: str) -> None:
    if trace.seconds > MOST_DAYS * 86_400:
        raise TraceError(
            f"{where}: requests are spread over {trace.seconds / 86_400:.0f} days, at most {MOST_DAYS} can"
            " be replayed: are times in another unit? Else split the file"
        )


def _why_empty(trace: Trace) -> str:
    first = f"; the first: {trace.problems[0]}" if trace.problems else ""
    return f"no usable line among {len(trace.problems)}{first}"


def _with_answers(trace: Trace, output_tokens: int) -> Trace:
    unknown = 0
    for at, arrival in enumerate(trace.arrivals):
        if not arrival.output_tokens:
            unknown += 1
            trace.arrivals[at] = arrival._replace(output_tokens=output_tokens)
    if unknown:
        some = "" if unknown == len(trace.arrivals) else f" of {unknown} requests"
        trace.notes.append(
            f"The trace does not say how long answers{some} were: each is taken as {output_tokens} tokens."
        )
    return trace
