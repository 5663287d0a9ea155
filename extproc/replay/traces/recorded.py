"""The log of a running router (`extproc.replay.log`): keys and lengths, no text."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from extproc.prefix import BlockKeys
from extproc.replay import log
from extproc.replay.arrival import TOKEN_BYTES, Arrival, Trace, engine_blocks, from_zero
from extproc.replay.traces.lines import LineError, TraceError, each_line, tokens

NAME = "log"


def recognise(line: bytes) -> bool:
    """A line that the log writes."""
    return line.startswith(b'{"keys":')


def read(path: Path, block_tokens: int = 64, pool: str = "") -> Trace:
    """The trace, of one pool or of all that are in the file.

    Raises `TraceError` if others are in it and not that one, or it cannot be read.
    """
    pools: Counter[str] = Counter()
    # Prompts that begin alike have the same numbers: one object for each saves most of the memory.
    numbers: dict[int, int] = {}

    def use(line: bytes) -> Arrival | None:
        try:
            record = log.parse(line)
        except ValueError as error:
            raise LineError(str(error)) from error
        pools[record.pool] += 1
        if pool and record.pool != pool:
            return None
        length = max(record.length, record.keys.ends[-1] if record.keys.ends else 0)
        prompt = tokens("length", max(1, -(-length // TOKEN_BYTES)), 1)
        output = tokens("output_tokens", record.output_tokens, 0)
        blocks, keys, ends = (
            [numbers.setdefault(number, number) for number in some]
            for some in (engine_blocks(record.keys, block_tokens), record.keys.keys, record.keys.ends)
        )
        return Arrival(record.at, BlockKeys(keys, ends), blocks, prompt, output)

    found, problems = each_line(path, use)
    arrivals, origin = from_zero(found)
    notes = []
    if pool and pool not in pools and pools:
        raise TraceError(f"{path}: no request of pool {pool!r}; there are: {', '.join(sorted(pools))}")
    if len(pools) > 1 and not pool:
        counts = ", ".join(f"{name} ({count} requests)" for name, count in pools.most_common(10))
        notes.append(f"Requests of several pools are replayed as if they were one; --pool chooses: {counts}.")
    return Trace(path.stem, arrivals, block_tokens, notes=notes, problems=problems, origin=origin)
