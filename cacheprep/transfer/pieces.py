"""Memory for bytes on their way from a source to the disk, in pieces of one size."""

from __future__ import annotations

import mmap
from collections import deque
from threading import Lock

LARGEST_BYTES, LEAST_BYTES = 1 << 20, 256 << 10
"""Of a piece. One is read, hashed and written while it is in a core's cache; shorter ones cost more calls."""
IN_USE_BYTES = 64 << 20
"""That the pieces being filled may take together; where there are more connections, pieces are shorter."""
KEPT_BYTES = 96 << 20
"""That pieces may take which wait for those before them, to be hashed in order."""


class Pieces:
    """Pieces for this many connections, each aligned to a page as O_DIRECT wants it. From any thread."""

    def __init__(self, connections: int) -> None:
        size = LARGEST_BYTES
        while size > LEAST_BYTES and size * connections > IN_USE_BYTES:
            size //= 2
        self.size = size
        """Bytes of a piece."""
        self._lock = Lock()
        self._free: deque[memoryview] = deque()
        self._may_be_kept = KEPT_BYTES // size

    def take(self) -> memoryview:
        """A piece to fill."""
        with self._lock:
            if self._free:
                return self._free.pop()
        return memoryview(mmap.mmap(-1, self.size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))

    def keep(self) -> bool:
        """Whether one more filled piece may be kept. It is given back by `give(..., kept=True)`."""
        with self._lock:
            if not self._may_be_kept:
                return False
            self._may_be_kept -= 1
            return True

    def give(self, piece: memoryview, *, kept: bool = False) -> None:
        """Give a piece back, whole."""
        with self._lock:
            self._may_be_kept += kept
            self._free.append(piece)
