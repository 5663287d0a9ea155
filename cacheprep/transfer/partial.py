"""A file that is being fetched: pieces written in any order, hashed from its start to its end.

The digests of a file need its bytes in order, pieces come in any. The piece that begins where hashing has got
to is hashed by the connection that brings it. One further on is kept in memory until hashing gets there, as
long as there is memory for it, and else read back from the disk. One thread at a time hashes a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from hashlib import sha256
from threading import Lock

import xxhash

from cacheprep.digests import hasher
from cacheprep.failures import Failure, Reason
from cacheprep.listing import Digest, File
from cacheprep.transfer import journal
from cacheprep.transfer.disk import DiskFile
from cacheprep.transfer.journal import Claim
from cacheprep.transfer.pieces import Pieces
from cacheprep.transfer.ranges import Range, gaps


class Revoked(Exception):  # noqa: N818 - says what it is
    """The range was given to another thread meanwhile."""


class PartialFile:
    """A file of the listing, open for writing."""

    def __init__(self, path: str, file: File, pieces: Pieces) -> None:
        """Open what a reservation allocated, or make it; its directory is there.

        Raises:
            OSError: it cannot be opened.
        """
        self.file = file
        self.pieces = pieces
        self._disk = DiskFile(path, file.size)
        self._lock = Lock()
        self._kept: dict[int, tuple[memoryview, int]] = {}
        """Start to piece and length of what waits in memory to be hashed."""
        self._digests = file.digests
        self._begin()

    def _begin(self) -> None:
        self._sha256 = sha256()
        others = [digest for digest in self._digests if digest.algorithm != "sha256"]
        self._others = [(digest, hasher(digest, self.file.size)) for digest in others]
        self._hashed = 0
        self._hashing = False
        self._written: dict[int, int] = {}
        """Start to end of what waits on the disk to be hashed."""
        self._drop_kept()

    def _drop_kept(self) -> None:
        for piece, _ in self._kept.values():
            self.pieces.give(piece, kept=True)
        self._kept.clear()

    def close(self) -> None:
        """Close it. No writer may be at work."""
        self._disk.close()
        self._drop_kept()

    def check(self, claims: Iterable[Claim], read: Callable[[int], None]) -> list[Range]:
        """Read the ranges that an earlier run claims; those whose bytes are as claimed need not be fetched.

        Args:
            claims: of the journal.
            read: told how many bytes were read; may raise to stop it.

        Returns:
            what is still to be fetched, in order.
        """
        right: list[Range] = []
        piece = self.pieces.take()
        for range_, claimed in sorted(claims):
            if right and range_.start < right[-1].end:
                continue
            hashes = range_.start == self._hashed
            found = journal.hasher()
            for view in self._disk.read(range_.start, range_.end, piece):
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
        self.pieces.give(piece)
        self._written = {start: end for start, end in right if start >= self._hashed}
        return gaps(self.file.size, right)

    def told(self, digests: tuple[Digest, ...]) -> None:
        """The source says digests of a file of which the listing has none; nothing was written yet."""
        self._digests = digests
        self._begin()

    def writer(self, range_: Range) -> RangeWriter:
        """Begin to write a range that nobody else writes."""
        return RangeWriter(self, range_, range_.start, journal.hasher(), self.pieces.take())

    def write(self, piece: memoryview, length: int, at: int) -> bool:
        """Write the first `length` bytes of a piece, and hash what can be hashed now.

        Returns whether the piece is the writer's still; else it is kept, and the writer takes another one.

        Raises:
            OSError: the disk failed.
        """
        self._disk.write(piece[:length], at)
        with self._lock:
            in_turn = self._hashed == at and not self._hashing
            kept = not in_turn and self.pieces.keep()
            if in_turn:
                self._hashing = True
            elif kept:
                self._kept[at] = piece, length
            else:
                self._written[at] = at + length
        if in_turn:
            self._update(piece[:length])
        self.hash_on(at + length if in_turn else None)
        return not kept

    def hash_on(self, hashed: int | None = None) -> None:
        """Hash what waits and is next, unless another thread does; `hashed` is where this thread has got."""
        while True:
            with self._lock:
                if hashed is not None:
                    self._hashed, self._hashing = hashed, False
                kept = end = None
                if not self._hashing:
                    kept = self._kept.pop(self._hashed, None)
                    end = None if kept else self._written.pop(self._hashed, None)
                if kept is None and end is None:
                    return
                self._hashing = True
                at = self._hashed
            if kept is not None:
                piece, length = kept
                self._update(piece[:length])
                self.pieces.give(piece, kept=True)
                hashed = at + length
            elif end is not None:
                buffer = self.pieces.take()
                for view in self._disk.read(at, end, buffer):
                    self._update(view)
                self.pieces.give(buffer)
                # If it is shorter than it was allocated, whoever compares the hash finds out.
                hashed = end

    def sha256(self) -> str:
        """The sha256 of the complete file.

        Raises:
            Failure: IntegrityMismatch if a digest of the source is another.
        """
        found = self._sha256.hexdigest()
        for digest in self._digests:
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
                f"file {self.file.name!r}: {algorithm} of what came is {found}, the source has {listed}",
            )

    def _update(self, view: memoryview) -> None:
        self._sha256.update(view)
        for _, other in self._others:
            other.update(view)


class RangeWriter:
    """Writes a range from its start to its end; the only way to write one. Used by one thread at a time.

    Bytes are put into `room()` and told by `took`. Full pieces are written and hashed.

    A thread that hangs in the source may come back after its range was given to another. It finds its writer
    revoked then, and not a byte of it is written.
    """

    def __init__(
        self, partial: PartialFile, range_: Range, at: int, brought: xxhash.xxh3_128, piece: memoryview
    ) -> None:
        self.partial = partial
        self.range = range_
        self.at = at
        """Where the next byte goes."""
        self._hash = brought
        self._piece = piece
        self._begin = at
        """Where the piece begins."""
        self._lock = Lock()
        self._revoked = False

    @property
    def revoked(self) -> bool:
        """Whether nothing more can be written with it."""
        return self._revoked

    def room(self) -> memoryview:
        """Where to put the next bytes; empty once the range is whole."""
        return self._piece[self.at - self._begin : self._stop - self._begin]

    def told(self, digests: tuple[Digest, ...]) -> None:
        """See `PartialFile.told`; this is the writer of the whole file, at its start.

        Raises:
            Revoked: the range is another thread's now.
        """
        with self._lock:
            if self._revoked:
                raise Revoked
            self.partial.told(digests)

    def took(self, count: int) -> None:
        """`count` bytes were put into `room()`.

        Raises:
            Revoked: the range is another thread's now.
            OSError: the disk failed.
        """
        with self._lock:
            if self._revoked:
                raise Revoked
            self.at += count
            if self.at == self._stop:
                self._flush()

    def finish(self) -> Claim:
        """The whole range is written.

        Raises:
            Revoked: the range is another thread's now.
        """
        self._leave()
        self.partial.pieces.give(self._piece)
        return Claim(self.range, self._hash.hexdigest())

    def revoke(self) -> RangeWriter:
        """Stop a thread from writing any more, and go on where it stopped with the writer returned."""
        self._leave()
        # That thread may be putting bytes into its piece at this moment: its successor gets another one.
        piece = self.partial.pieces.take()
        filled = self.at - self._begin
        piece[:filled] = self._piece[:filled]
        rest = RangeWriter(self.partial, self.range, self._begin, self._hash, piece)
        rest.at = self.at
        return rest

    @property
    def _stop(self) -> int:
        """Where the piece ends: pieces begin at multiples of their size, whatever their range begins at."""
        size = self.partial.pieces.size
        return min((self._begin // size + 1) * size, self.range.end)

    def _flush(self) -> None:
        length = self.at - self._begin
        self._hash.update(self._piece[:length])
        if not self.partial.write(self._piece, length, self._begin):
            self._piece = self.partial.pieces.take()
        self._begin = self.at

    def _leave(self) -> None:
        with self._lock:
            if self._revoked:
                raise Revoked
            self._revoked = True
