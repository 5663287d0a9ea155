"""What every source is: a listing, and ranges of exactly the files in it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from cacheprep.listing import File, Listing


class Source(Protocol):
    """A place that holds files. Blocking; safe for use from many threads at once."""

    @property
    def url(self) -> str:
        """What was asked for, without credentials. `Listing.source` is its canonical form."""

    def resolve(self) -> Listing:
        """List what is there now, with the digests and versions that the source knows.

        Retries what is transient. Raises Failure: InvalidRequest (no such thing, a hostile file name, no
        digests where they are demanded), AccessDenied, SourceUnavailable, SourceChanged (while listing).
        """

    def open(self, file: File, start: int, end: int) -> AbstractContextManager[Iterator[memoryview | bytes]]:
        """Bytes [start, end) of exactly the version of `file` that was listed.

        `file` may come from a listing that another machine made. Yields at most 1 MiB at a time, in order;
        a view is overwritten by the next one. Never yields more than asked, and raises where there is less.
        Leaving the context early is cheap and closes the connection. Does not retry, except that what has
        expired is signed or resolved again once.

        Raises Failure on entering or while iterating: SourceChanged (412, 404, another version, another
        size), SourceUnavailable (a retry may help; `retry_after_s` is what the source asked for),
        AccessDenied, InvalidRequest.
        """

    def close(self) -> None:
        """Give connections back. Nothing may be open."""
