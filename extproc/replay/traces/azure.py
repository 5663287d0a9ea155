"""Azure LLM inference trace, CSV: `TIMESTAMP,ContextTokens,GeneratedTokens`.

It says when requests came and how long they were, and nothing of what they shared.
Patel et al., "Splitwise: Efficient Generative LLM Inference Using Phase Splitting", ISCA 2024, and
github.com/Azure/AzurePublicDataset.
"""

from __future__ import annotations

from pathlib import Path

from extproc.prefix import BlockKeys
from extproc.replay.arrival import TOKEN_BYTES, Arrival, Trace, from_zero, key_of
from extproc.replay.traces.lines import LineError, each_line, iso, tokens

NAME = "azure"
_HEADER = b"TIMESTAMP,ContextTokens,GeneratedTokens"
NOTE = (
    "This trace does not say which prompts begin alike. Every prompt is taken as unique: hit rates are 0 and "
    "say nothing; times and balance show arrivals and lengths only."
)


def recognise(line: bytes) -> bool:
    """The header, which is the same in every file."""
    return line.startswith(_HEADER)


def read(path: Path, block_tokens: int = 64) -> Trace:
    """The trace, every prompt unique."""
    found, problems = each_line(path, _row)
    found.sort()
    arrivals = []
    for number, (at, prompt, output) in enumerate(found):
        keys = BlockKeys([key_of(-1 - number)], [prompt * TOKEN_BYTES])
        arrivals.append(Arrival(at, keys, (), prompt, output))
    arrivals, origin = from_zero(arrivals)
    return Trace(path.stem, arrivals, block_tokens, False, [NOTE], problems, origin)


def _row(line: bytes) -> tuple[float, int, int] | None:
    if recognise(line):
        return None
    parts = line.decode(errors="replace").split(",")
    if len(parts) != 3:
        raise LineError(f"expected three columns, not {len(parts)}")
    try:
        prompt, output = int(parts[1]), int(parts[2])
    except ValueError:
        raise LineError("ContextTokens and GeneratedTokens must be whole numbers") from None
    return iso(parts[0]), tokens("ContextTokens", prompt, 1), max(1, tokens("GeneratedTokens", output, 0))
