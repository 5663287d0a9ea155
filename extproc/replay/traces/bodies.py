"""Your own requests, JSONL: `timestamp` (seconds, or a time as in ISO 8601), `body` (JSON as it was sent).

Optional: `path` (default: chat completions), `output_tokens` (default: the body's `max_tokens` or
`max_completion_tokens`, else `OUTPUT_TOKENS`), and `session`, any text or number that is the same for all
turns of a conversation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import xxhash

from extproc.replay.arrival import Arrival, Trace
from extproc.replay.traces.lines import LineError, each_line, json_object, moment
from extproc.replay.traces.requests import CHAT, arrival

NAME = "bodies"
OUTPUT_TOKENS = 128
"""Output length where nothing says it."""


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

    arrivals, problems = each_line(path, use)
    arrivals.sort(key=lambda one: one.at)
    start = arrivals[0].at if arrivals else 0.0
    arrivals = [one._replace(at=one.at - start) for one in arrivals]
    return Trace(path.stem, arrivals, block_tokens, problems=problems)


def _output(fields: dict[str, Any], body: dict[str, Any]) -> int:
    for value in (
        fields.get("output_tokens"),
        body.get("max_completion_tokens"),
        body.get("max_tokens"),
    ):
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return OUTPUT_TOKENS
