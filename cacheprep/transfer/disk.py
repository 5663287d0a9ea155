"""A file on the disk, written and read past the page cache where its file system can.

Writing through the page cache takes 0.3 to 1.2 s of processor time per GB, for pages that are allocated,
filled and written back; past it 0.06 s. And a node that fetches weights goes on serving: what others have in
memory is not driven out by bytes that nobody reads soon.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from threading import Lock

from cacheprep.store.durable import start_writing
from cacheprep.store.layout import FILE_MODE

ALIGNED = 4096
"""What O_DIRECT wants offsets, lengths and memory to be multiples of; no less than the blocks of any disk."""
DIRECT_FROM = 128 << 10
"""Bytes of a file. For a shorter one, waiting for the disk costs more than the page cache."""
WRITE_BYTES = 32 << 10
"""At a time through the page cache, which takes memory in pieces as long as writes are. If a hypervisor takes
back what is free (free page reporting), long pieces must come from there: with 256 KiB a write took twice the
processor time."""
START_BYTES = 256 << 10
"""From so many on, the kernel is told to begin writing what the page cache took, so that the fsync at the end
has little left to do."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class DiskFile:
    """A file of `size` bytes, open for reading and writing. From any thread."""

    def __init__(self, path: str, size: int) -> None:
        """Open it, or make it; its directory is there.

        Raises:
            OSError: it cannot be opened.
        """
        self._path = path
        self._lock = Lock()
        self._direct = self._cached = -1
        if size >= DIRECT_FROM:
            try:
                self._direct = os.open(path, _FLAGS | os.O_DIRECT, FILE_MODE)
            except OSError as error:
                if error.errno != errno.EINVAL:  # open(2): the file system cannot
                    raise
        os.fchmod(self._through_cache() if self._direct < 0 else self._direct, FILE_MODE)

    def write(self, piece: memoryview, at: int) -> None:
        """Write all of a piece, which begins at a page of memory.

        Raises:
            OSError: it cannot be written.
        """
        done = 0
        if self._direct >= 0 and at % ALIGNED == 0:
            done = self._write_past_cache(piece[: len(piece) - len(piece) % ALIGNED], at)
        if done == len(piece):
            return
        fd = self._through_cache()
        begun = done
        while done < len(piece):
            done += os.pwrite(fd, piece[done : done + WRITE_BYTES], at + done)
        if done - begun >= START_BYTES:
            start_writing(fd, at + begun, done - begun)

    def read(self, start: int, end: int, buffer: memoryview) -> Iterator[memoryview]:
        """Bytes [start, end), or as many as there are; each view is of `buffer`, and overwritten by the next.

        `buffer` begins at a page of memory, and is whole pages.
        """
        while start < end:
            length = min(len(buffer), end - start)
            taken = min(self._read(buffer, start, length), length)
            if taken == 0:
                return
            yield buffer[:taken]
            start += taken

    def close(self) -> None:
        """Close it. Nobody may be reading or writing."""
        for fd in (self._direct, self._cached):
            if fd >= 0:
                os.close(fd)
        self._direct = self._cached = -1

    def _write_past_cache(self, piece: memoryview, at: int) -> int:
        """Write a piece of whole blocks; returns how many bytes could be."""
        done = 0
        while done < len(piece):
            try:
                done += os.pwrite(self._direct, piece[done:], at + done)
            except OSError as error:
                if error.errno != errno.EINVAL:  # a disk of larger blocks than `ALIGNED`
                    raise
                break
        return done

    def _read(self, buffer: memoryview, start: int, length: int) -> int:
        if self._direct >= 0 and start % ALIGNED == 0:
            whole = -(-length // ALIGNED) * ALIGNED
            try:
                return os.preadv(self._direct, [buffer[:whole]], start)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        return os.preadv(self._through_cache(), [buffer[:length]], start)

    def _through_cache(self) -> int:
        with self._lock:
            if self._cached < 0:
                self._cached = os.open(self._path, _FLAGS, FILE_MODE)
            return self._cached
