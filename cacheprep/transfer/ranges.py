"""Ranges of bytes of a file. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Range(NamedTuple):
    """Bytes `start` to `end`, `end` not among them."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Bytes."""
        return self.end - self.start


def gaps(size: int, whole: Iterable[Range]) -> list[Range]:
    """What of a file of `size` bytes is in none of the ranges, in order."""
    found = []
    at = 0
    for start, end in sorted(whole):
        if start > at:
            found.append(Range(at, min(start, size)))
        at = max(at, end)
        if at >= size:
            break
    if at < size:
        found.append(Range(at, size))
    return found


def cut(ranges: Iterable[Range], length: int) -> Iterator[Range]:
    """The ranges in pieces of at most `length` bytes.

    They end at multiples of `length`, so that a run that resumes asks for the same pieces.
    """
    for start, end in ranges:
        while start < end:
            stop = min(end, (start // length + 1) * length)
            yield Range(start, stop)
            start = stop
