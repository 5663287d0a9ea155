"""Your own requests, JSONL: `timestamp` (seconds, or a time as in ISO 8601), `body` (JSON as it was sent).

Optional: `path` (default: chat completions), `output_tokens` (default: the body's `max_tokens` or
`max_completion_tokens`), and `session`, any text or number that is the same for all turns of a conversation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xxhash

from extproc.replay.arrival import Arrival, Trace, from_zero
from extproc.replay.traces.lines import MOST_TOKENS, LineError, each_line, json_object, moment, tokens
from extproc.replay.traces.requests import CHAT, arrival

NAME = "bodies"


def recognise(line: bytes) -> bool:
    """A JSON object with a body."""
    return line.startswith(b"{") and b'"body"' in line


def read(path: Path, block_tokens: int = 64) -> Trace:
    """The trace."""

    def use(line: bytes) -> Arrival:
        fields = json_object(line)
        body = fields.get("body")
        if not isinstance(body, dict):
            raise LineError("body: expected a JSON object")
        session = fields.get("session")
        return arrival(
            moment(fields, "timestamp"),
            str(fields.get("path") or CHAT),
            body,
            _output(fields, body),
            block_tokens,
            0 if session is None else xxhash.xxh3_64_intdigest(str(session).encode()),
        )

    found, problems = each_line(path, use)
    arrivals, origin = from_zero(found)
    return Trace(path.stem, arrivals, block_tokens, problems=problems, origin=origin)


def _output(fields: dict[str, Any], body: dict[str, Any]) -> int:
    if fields.get("output_tokens") is not None:
        return tokens("output_tokens", fields["output_tokens"], 0)
    for value in (body.get("max_completion_tokens"), body.get("max_tokens")):
        if type(value) is int and 0 < value <= MOST_TOKENS:
            return value
    return 0
