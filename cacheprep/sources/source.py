"""What every source is: a listing, and ranges of exactly the files in it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from cacheprep.listing import Digest, File, Listing

WHOLE_BYTES = 1 << 20
"""A file of so many bytes or fewer, of which a listing has no digest, is asked for whole: then a source can
give its digests with its bytes, where another request for them would cost as much as the bytes do."""


def comes_whole(file: File) -> bool:
    """Whether a file is fetched in one range whatever the size of ranges is; see `WHOLE_BYTES`."""
    return not file.digests and file.size <= WHOLE_BYTES


class Body(Protocol):
    """The bytes of a range, in order. The reader has the memory, so that nothing is copied on the way."""

    @property
    def digests(self) -> tuple[Digest, ...]:
        """Of the file, where the listing has none, the range is all of it, and the source says them now."""

    def readinto(self, buffer: memoryview, /) -> int:
        """Put the next bytes at the front of `buffer`, which has room for one or more.

        Returns how many came: no more than fit and than the range has left, and 0 only at its end. Raises
        Failure, as `Source.open`, where there is less than was asked for.
        """


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

    def open(self, file: File, start: int, end: int) -> AbstractContextManager[Body]:
        """Bytes [start, end) of exactly the version of `file` that was listed.

        `file` may come from a listing that another machine made. Leaving the context early is cheap and
        closes the connection. Does not retry, except that what has expired is signed or resolved again once.

        Raises Failure on entering or while reading: SourceChanged (412, 404, another version, another
        size), SourceUnavailable (a retry may help; `retry_after_s` is what the source asked for),
        AccessDenied, InvalidRequest.
        """

    def close(self) -> None:
        """Give connections back. Nothing may be open."""


class Nothing:
    """The body of a range without bytes."""

    digests: tuple[Digest, ...] = ()

    def readinto(self, _buffer: memoryview, /) -> int:
        """None."""
        return 0
