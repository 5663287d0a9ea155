"""Lines of trace files, and what becomes of a line that cannot be used."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import orjson

from extproc.replay.arrival import Problem

T = TypeVar("T")

MOST_LOOKED_AT = 1 << 20
"""Bytes of a first line that are looked at to tell a format."""
MOST_TOKENS = 100_000_000
"""In a prompt or an answer: more is a number in the wrong place."""

_COMPRESSED = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
"""What such files begin with, RFC 1952, RFC 8878 and the formats' own documents."""


class TraceError(ValueError):
    """A trace file that cannot be used at all; the text names it."""


class LineError(ValueError):
    """A line that cannot be used; the text says why."""


def first_line(path: Path) -> bytes:
    """The first line that is not empty, or as much of it as tells its format.

    Raises `TraceError` if there is none or the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            while line := file.readline(MOST_LOOKED_AT):
                if line := _stripped(line):
                    break
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    if not line:
        raise TraceError(f"{path}: is empty")
    for magic, name in _COMPRESSED.items():
        if line.startswith(magic):
            raise TraceError(f"{path}: is compressed with {name}: decompress it first")
    return line


def each_line(path: Path, use: Callable[[bytes], T | None]) -> tuple[list[T], list[Problem]]:
    """What `use` makes of every line that is not empty, None left out, and the lines that raised `LineError`.

    Raises `TraceError` if the file cannot be read.
    """
    found: list[T] = []
    problems: list[Problem] = []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                line = _stripped(line)
                if not line:
                    continue
                try:
                    made = use(line)
                except LineError as error:
                    problems.append(Problem(str(path), number, str(error)))
                else:
                    if made is not None:
                        found.append(made)
    except OSError as error:
        raise TraceError(f"{path}: {error.strerror}") from error
    return found, problems


def _stripped(line: bytes) -> bytes:
    """Without white space, and without the byte order mark that some editors begin a file with."""
    return line.strip().removeprefix(b"\xef\xbb\xbf")


def json_object(line: bytes) -> dict[str, Any]:
    """The JSON object of a line."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise LineError(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise LineError("not a JSON object")
    return value


def tokens(name: str, value: object, least: int) -> int:
    """The number of tokens that `value`, called `name`, is."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise LineError(f"{name}: expected a whole number, not {value!r}"[:200])
    if not least <= value <= MOST_TOKENS:
        raise LineError(f"{name}: expected {least} to {MOST_TOKENS} tokens, not {value}"[:200])
    return value


def number(fields: dict[str, Any], name: str) -> float:
    """The finite number `name`."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        raise LineError(f"{name}: expected a number, not {value!r}"[:200])
    return float(value)


def moment(fields: dict[str, Any], name: str) -> float:
    """The time `name` in seconds: a number of seconds, or a time as in ISO 8601 (UTC if it has no zone)."""
    value = fields.get(name)
    if isinstance(value, str):
        return iso(value)
    return number(fields, name)


def iso(text: str) -> float:
    """Seconds since 1970 of a time as in ISO 8601; UTC if it has no zone, fractions of any length."""
    head, dot, tail = text.partition(".")
    digits = tail[: len(tail) - len(tail.lstrip("0123456789"))]
    try:
        parsed = datetime.fromisoformat(head + tail[len(digits) :])
    except ValueError:
        raise LineError(f"expected a time like 2024-05-01T12:00:00.5Z, not {text!r}"[:200]) from None
    if parsed.tzinfo is None:
        parsed = parsed.replace(tzinfo=UTC)
    return parsed.timestamp() + (float(f"0.{digits}") if dot and digits else 0.0)
