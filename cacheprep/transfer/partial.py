"""A file that is being fetched: ranges written in any order, hashed from its start to its end.

The digests of a file need its bytes in order, ranges come in any. The connection whose range begins where
hashing has got to hashes what it brings (the bytes are in memory yet). Ranges further on are written
only, and read back, from the page cache as a rule, once hashing gets there. One thread at a time hashes a
file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from hashlib import sha256
from threading import Lock

import xxhash

from cacheprep.digests import hasher
from cacheprep.failures import Failure, Reason
from cacheprep.listing import File
from cacheprep.store.durable import start_writing
from cacheprep.store.layout import FILE_MODE
from cacheprep.transfer import journal
from cacheprep.transfer.journal import Claim
from cacheprep.transfer.ranges import Range, gaps

CHUNK = 1 << 20
"""Bytes read back at a time."""


WRITE = 32 << 10
"""Bytes written at a time. The page cache takes memory in pieces as long as writes are. If a hypervisor takes
back what is free (free page reporting), long pieces must come from there: with 256 KiB a write took twice the
processor time."""


class Revoked(Exception):  # noqa: N818 - says what it is
    """The range was given to another thread meanwhile."""


class PartialFile:
    """A file of the listing, open for writing."""

    def __init__(self, path: str, file: File) -> None:
        """Open what a reservation allocated, or make it; its directory is there.

        Raises:
            OSError: it cannot be opened.
        """
        self.file = file
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        os.fchmod(self._fd, FILE_MODE)
        self._lock = Lock()
        self._begin()

    def _begin(self) -> None:
        self._sha256 = sha256()
        others = [digest for digest in self.file.digests if digest.algorithm != "sha256"]
        self._others = [(digest, hasher(digest, self.file.size)) for digest in others]
        self._hashed = 0
        self._hashing = False
        self._whole: dict[int, int] = {}

    def close(self) -> None:
        """Close it. No writer may be at work."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    @property
    def complete(self) -> bool:
        """Whether every byte is there and hashed."""
        return self._hashed == self.file.size

    def check(self, claims: Iterable[Claim], read: Callable[[int], None]) -> list[Range]:
        """Read the ranges that an earlier run claims; those whose bytes are as claimed need not be fetched.

        Args:
            claims: of the journal.
            read: told how many bytes were read; may raise to stop it.

        Returns:
            what is still to be fetched, in order.
        """
        right: list[Range] = []
        for range_, claimed in sorted(claims):
            if right and range_.start < right[-1].end:
                continue
            hashes = range_.start == self._hashed
            found = journal.hasher()
            for view in self._read(range_.start, range_.end):
                found.update(view)
                if hashes:
                    self._update(view)
                read(len(view))
            if found.hexdigest() == claimed:
                right.append(range_)
                if hashes:
                    self._hashed = range_.end
            elif hashes:
                # Wrong bytes went into the digests: they begin anew once the gap is closed.
                self._begin()
        self._whole = {start: end for start, end in right if start >= self._hashed}
        return gaps(self.file.size, right)

    def writer(self, range_: Range) -> RangeWriter:
        """Begin to write a range that nobody else writes."""
        return RangeWriter(self, range_, range_.start, journal.hasher())

    def finished(self, range_: Range) -> None:
        """A range is written. Hashes what can be hashed now, unless another thread does."""
        with self._lock:
            self._whole[range_.start] = range_.end
        if self.file.size >= CHUNK:
            start_writing(self._fd, range_.start, range_.length)
        while (found := self._next_to_hash()) is not None:
            for view in self._read(found.start, found.end):
                self._update(view)
            with self._lock:
                self._hashed = found.end
                self._hashing = False

    def sha256(self) -> str:
        """The sha256 of the complete file.

        Raises:
            Failure: IntegrityMismatch if a digest of the listing is another.
        """
        found = self._sha256.hexdigest()
        for digest in self.file.digests:
            if digest.algorithm == "sha256":
                self._compare("sha256", found, digest.value)
        for digest, computed in self._others:
            self._compare(digest.algorithm, computed.hexdigest(), digest.value)
        return found

    def forget(self) -> None:
        """Begin anew: what was written is wrong. No writer may be at work."""
        self._begin()

    def _compare(self, algorithm: str, found: str, listed: str) -> None:
        if found != listed:
            raise Failure(
                Reason.INTEGRITY_MISMATCH,
                f"file {self.file.name!r}: {algorithm} of what came is {found}, the listing has {listed}",
            )

    def _next_to_hash(self) -> Range | None:
        with self._lock:
            if self._hashing:
                return None
            # A writer that hashed as it went has left its own range in there.
            for start in [start for start in self._whole if self._whole[start] <= self._hashed]:
                del self._whole[start]
            end = self._whole.pop(self._hashed, None)
            if end is None:
                return None
            self._hashing = True
            return Range(self._hashed, end)

    def _start_hashing(self, at: int) -> bool:
        with self._lock:
            if self._hashing or self._hashed != at:
                return False
            self._hashing = True
            return True

    def _stop_hashing(self, at: int) -> None:
        with self._lock:
            self._hashed = at
            self._hashing = False

    def _write(self, view: memoryview, at: int) -> None:
        while view:
            written = os.pwrite(self._fd, view[:WRITE], at)
            view, at = view[written:], at + written

    def _read(self, start: int, end: int) -> Iterable[memoryview]:
        buffer = bytearray(min(CHUNK, end - start))
        view = memoryview(buffer)
        while start < end:
            taken = os.preadv(self._fd, [view[: end - start]], start)
            if taken == 0:
                # Shorter than it was allocated: whoever compares the hash finds out.
                return
            yield view[:taken]
            start += taken

    def _update(self, view: memoryview) -> None:
        self._sha256.update(view)
        for _, other in self._others:
            other.update(view)


class RangeWriter:
    """Writes a range from its start to its end; the only way to write one. Used by one thread at a time.

    A thread that hangs in the source may come back after its range was given to another. It finds its writer
    revoked then, and not a byte of it is written.
    """

    def __init__(self, partial: PartialFile, range_: Range, at: int, brought: xxhash.xxh3_128) -> None:
        self.partial = partial
        self.range = range_
        self.at = at
        """Where the next byte goes."""
        self._hash = brought
        self._lock = Lock()
        self._revoked = False
        self._hashes = partial._start_hashing(at)

    @property
    def revoked(self) -> bool:
        """Whether nothing more can be written with it."""
        return self._revoked

    def write(self, chunk: bytes | memoryview) -> None:
        """Write the next bytes.

        Raises:
            Revoked: the range is another thread's now.
            OSError: the disk failed.
        """
        with self._lock, memoryview(chunk) as view:
            if self._revoked:
                raise Revoked
            if len(view) > self.range.end - self.at:
                raise AssertionError(f"{self.partial.file.name}: the source yields more than was asked for")
            self.partial._write(view, self.at)
            self._hash.update(view)
            if self._hashes:
                self.partial._update(view)
            self.at += len(view)

    def finish(self) -> Claim:
        """The whole range is written.

        Raises:
            Revoked: the range is another thread's now.
        """
        self._leave()
        return Claim(self.range, self._hash.hexdigest())

    def revoke(self) -> RangeWriter:
        """Stop a thread from writing any more, and go on where it stopped with the writer returned."""
        self._leave()
        return RangeWriter(self.partial, self.range, self.at, self._hash)

    def _leave(self) -> None:
        with self._lock:
            if self._revoked:
                raise Revoked
            self._revoked = True
            if self._hashes:
                self.partial._stop_hashing(self.at)
                self._hashes = False
