"""Mooncake JSONL: `timestamp` (ms), `input_length`, `output_length` (tokens), `hash_ids`, one per 512 tokens.

Equal ids mean equal content from the beginning up to there, so an id is a chained block key already. The
last one may stand for fewer than 512 tokens: the router has a key for it, the engine no full block.
Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025; github.com/kvcache-ai/Mooncake.
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

from extproc.prefix import BlockKeys
from extproc.replay.arrival import TOKEN_BYTES, Arrival, Trace, from_zero, key_of
from extproc.replay.traces.lines import LineError, each_line, json_object, number, tokens

NAME = "mooncake"
BLOCK_TOKENS = 512
_SHARED = 0.02
"""A block that more than this share of requests has is a system prompt or a popular document and tells no
session apart."""


def recognise(line: bytes) -> bool:
    """A JSON object with hash ids."""
    return line.startswith(b"{") and b'"hash_ids"' in line


def read(path: Path, block_tokens: int = BLOCK_TOKENS) -> Trace:
    """The trace; its blocks are of 512 tokens whatever is asked for."""
    found, problems = each_line(path, _arrival)
    counts = Counter(one for _, ids in found for one in ids)
    most = max(1, int(_SHARED * len(found)))
    arrivals, origin = from_zero(
        [arrival._replace(session=_session(ids, counts, most)) for arrival, ids in found]
    )
    return Trace(path.stem, arrivals, BLOCK_TOKENS, problems=problems, origin=origin)


def _arrival(line: bytes) -> tuple[Arrival, list[int]]:
    fields = json_object(line)
    length = tokens("input_length", fields.get("input_length"), 1)
    ids = fields.get("hash_ids")
    if not isinstance(ids, list) or not all(type(one) is int and abs(one) < 1 << 120 for one in ids):
        raise LineError("hash_ids: expected a list of whole numbers")
    if len(ids) < length // BLOCK_TOKENS or len(ids) > -(-length // BLOCK_TOKENS):
        raise LineError(f"hash_ids: {len(ids)} ids do not fit {length} tokens, one is {BLOCK_TOKENS}")
    if len(set(ids)) < len(ids):
        raise LineError("hash_ids: an id comes twice, so they are not chained")
    keys = [key_of(one) for one in ids]
    blocks = keys[: length // BLOCK_TOKENS]
    ends = [_end(at) for at in range(1, len(blocks) + 1)]
    if len(keys) > len(blocks):
        ends.append(length * TOKEN_BYTES)
    output = max(1, tokens("output_length", fields.get("output_length"), 0))
    return Arrival(number(fields, "timestamp") / 1000, BlockKeys(keys, ends), blocks, length, output), ids


@cache
def _end(blocks: int) -> int:
    """Where so many blocks end; one object for all prompts, as there are many."""
    return blocks * BLOCK_TOKENS * TOKEN_BYTES


def _session(ids: list[int], counts: Counter[int], most: int) -> int:
    """The first block that at most `most` requests have stands for the conversation."""
    return key_of(next((one for one in ids if counts[one] <= most), ids[-1])) if ids else 0
