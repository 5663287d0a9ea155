"""The log of a running router (`extproc.replay.log`): keys and lengths, no text."""

from __future__ import annotations

from pathlib import Path

from extproc.replay import log
from extproc.replay.arrival import TOKEN_BYTES, Arrival, Trace, engine_blocks
from extproc.replay.traces.bodies import OUTPUT_TOKENS
from extproc.replay.traces.lines import LineError, each_line

NAME = "log"
_NOTE = f"The log does not say how long answers were: every one is taken as {OUTPUT_TOKENS} tokens."


def recognise(line: bytes) -> bool:
    """A line that the log writes."""
    return line.startswith(b'{"keys":')


def read(path: Path, block_tokens: int = 64) -> Trace:
    """The trace, of all pools in the file."""

    def use(line: bytes) -> Arrival:
        try:
            record = log.parse(line)
        except ValueError as error:
            raise LineError(str(error)) from error
        tokens = max(
            1, -(-max(record.length, record.keys.ends[-1] if record.keys.ends else 0) // TOKEN_BYTES)
        )
        blocks = engine_blocks(record.keys, block_tokens)
        return Arrival(record.at, record.keys, blocks, tokens, record.output_tokens or OUTPUT_TOKENS)

    arrivals, problems = each_line(path, use)
    arrivals.sort(key=lambda one: one.at)
    start = arrivals[0].at if arrivals else 0.0
    arrivals = [one._replace(at=one.at - start) for one in arrivals]
    return Trace(path.stem, arrivals, block_tokens, notes=[_NOTE], problems=problems)
