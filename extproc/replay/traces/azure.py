"""Azure LLM inference trace, CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`.

It says when requests came and how long they were, and nothing of what they shared.
Patel et al., "Splitwise: Efficient Generative LLM Inference Using Phase Splitting", ISCA 2024, and
github.com/Azure/AzurePublicDataset.
"""

from __future__ import annotations

from pathlib import Path

from extproc.prefix import BlockKeys
from extproc.replay.arrival import TOKEN_BYTES, Arrival, Trace, key_of
from extproc.replay.traces.lines import LineError, each_line, iso

NAME = "azure"
_HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"
NOTE = (
    "This trace does not say which prompts begin alike. Every prompt is taken as unique: hit rates are 0 and "
    "say nothing; times and balance show arrivals and lengths only."
)


def recognise(line: bytes) -> bool:
    """The header, which is the same in every file."""
    return line.lstrip(b"\xef\xbb\xbf").startswith(_HEADER)


def read(path: Path, block_tokens: int = 64) -> Trace:
    """The trace, every prompt unique."""
    found, problems = each_line(path, _row)
    found.sort()
    start = found[0][0] if found else 0.0
    arrivals = []
    for number, (at, tokens, output) in enumerate(found):
        keys = BlockKeys([key_of(-1 - number)], [tokens * TOKEN_BYTES])
        arrivals.append(Arrival(at - start, keys, (), tokens, output))
    return Trace(path.stem, arrivals, block_tokens, has_prefixes=False, notes=[NOTE], problems=problems)


def _row(line: bytes) -> tuple[float, int, int] | None:
    if recognise(line):
        return None
    parts = line.decode(errors="replace").split(",")
    if len(parts) != 3:
        raise LineError(f"expected three columns, not {len(parts)}")
    try:
        tokens, output = int(parts[1]), int(parts[2])
    except ValueError:
        raise LineError("ContextTokens and GeneratedTokens must be whole numbers") from None
    if tokens < 1 or output < 0:
        raise LineError("ContextTokens must be at least 1, GeneratedTokens at least 0")
    return iso(parts[0]), tokens, max(1, output)
