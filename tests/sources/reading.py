"""Read from a source as the transfer engine does."""

from __future__ import annotations

from cacheprep.failures import Failure
from cacheprep.listing import File, Listing
from cacheprep.sources import Source
from cacheprep.sources.source import Body

BUFFER_BYTES = 10_000


def read(source: Source, file: File, start: int = 0, end: int | None = None) -> bytes:
    """Bytes [start, end) of a file, to its end without `end`."""
    with source.open(file, start, file.size if end is None else end) as body:
        return rest(body)


def rest(body: Body) -> bytes:
    """What is left of a body."""
    found, buffer = bytearray(), memoryview(bytearray(BUFFER_BYTES))
    while came := body.readinto(buffer):
        found += buffer[:came]
    return bytes(found)


def some(body: Body) -> int:
    """Read some bytes of a body, and not all; returns how many."""
    return body.readinto(memoryview(bytearray(BUFFER_BYTES)))


def contents(source: Source, listing: Listing) -> dict[str, bytes]:
    """Every file whole."""
    return {file.name: read(source, file) for file in listing.files}


def failure_of_reading(source: Source, file: File, start: int = 0, end: int | None = None) -> Failure:
    """What reading ends with."""
    try:
        got = read(source, file, start, end)
    except Failure as failure:
        return failure
    raise AssertionError(f"read {len(got)} bytes")


def failure_of_resolving(source: Source) -> Failure:
    """What listing ends with."""
    try:
        listing = source.resolve()
    except Failure as failure:
        return failure
    raise AssertionError(f"listed {[file.name for file in listing.files]}")


def named(listing: Listing, name: str) -> File:
    """A file of a listing."""
    [found] = [file for file in listing.files if file.name == name]
    return found
