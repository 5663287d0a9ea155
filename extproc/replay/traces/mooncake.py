"""Mooncake JSONL: `timestamp` (ms), `input_length`, `output_length` (tokens), `hash_ids`, one per 512 tokens.

Equal ids mean equal content from the beginning up to there, so an id is a chained block key already. The
last one may stand for fewer than 512 tokens: the router has a key for it, the engine no full block.
Qin et al., "Mooncake: Trading More Storage for Less Computation", FAST 2025; github.com/kvcache-ai/Mooncake.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

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
    # Prompts that begin alike share one object for each key and end: that is most of a large trace.
    keys: dict[int, int] = {}
    ends: list[int] = []

    def use(line: bytes) -> Arrival:
        fields = json_object(line)
        length = tokens("input_length", fields.get("input_length"), 1)
        ids = _ids(fields, length)
        output = max(1, tokens("output_length", fields.get("output_length"), 0))
        chain = [keys.get(one) or keys.setdefault(one, key_of(one)) for one in ids]
        whole = length // BLOCK_TOKENS
        while len(ends) < whole:
            ends.append((len(ends) + 1) * BLOCK_TOKENS * TOKEN_BYTES)
        at = [*ends[:whole], length * TOKEN_BYTES] if len(chain) > whole else ends[:whole]
        when = number(fields, "timestamp") / 1000
        return Arrival(when, BlockKeys(chain, at), chain[:whole], length, output)

    found, problems = each_line(path, use)
    counts = Counter(key for arrival in found for key in arrival.keys.keys)
    most = max(1, int(_SHARED * len(found)))
    arrivals, origin = from_zero(
        [arrival._replace(session=_session(arrival.keys.keys, counts, most)) for arrival in found]
    )
    return Trace(path.stem, arrivals, BLOCK_TOKENS, problems=problems, origin=origin)


def _ids(fields: dict[str, Any], length: int) -> list[int]:
    ids = fields.get("hash_ids")
    if not isinstance(ids, list) or not all(type(one) is int and abs(one) < 1 << 120 for one in ids):
        raise LineError("hash_ids: expected a list of whole numbers")
    if len(ids) < length // BLOCK_TOKENS or len(ids) > -(-length // BLOCK_TOKENS):
        raise LineError(f"hash_ids: {len(ids)} ids do not fit {length} tokens, one is {BLOCK_TOKENS}")
    if len(set(ids)) < len(ids):
        raise LineError("hash_ids: an id comes twice, so they are not chained")
    return ids


def _session(keys: list[int], counts: Counter[int], most: int) -> int:
    """The first block that at most `most` requests have stands for the conversation."""
    return next((key for key in keys if counts[key] <= most), keys[-1]) if keys else 0
