"""A disk that remembers in which order it was written and flushed: a FUSE file system with one file, `disk`.

A loop device over that file is a block device with a volatile write cache: a write is recorded when it comes,
a flush (the fsync that the loop driver makes of it) when the kernel asks for one. `Log` makes of the record
what a disk may hold if power is lost at any moment: all that was written before the last flush, and of what
was written since any part of it, in units of sectors, in any order.

    python -m tests.disk.recorder MOUNTPOINT BYTES LOG
"""

from __future__ import annotations

import errno
import os
import random
import stat
import struct
import sys
from pathlib import Path
from typing import Any

SECTOR = 4096
"""Bytes that a disk writes wholly or not at all."""
_HEAD = struct.Struct("<BQI")
_WRITE, _FLUSH = 1, 2


class Log:
    """The record of a disk."""

    def __init__(self, path: Path, size: int) -> None:
        """Read what has been recorded so far; `size` of the disk in bytes."""
        self.size = size
        self.events: list[tuple[int, bytes] | None] = []
        """A write as offset and bytes; None for a flush."""
        content = path.read_bytes()
        at = 0
        while at + _HEAD.size <= len(content):
            kind, offset, length = _HEAD.unpack_from(content, at)
            at += _HEAD.size
            if kind == _FLUSH:
                self.events.append(None)
                continue
            self.events.append((offset, content[at : at + length]))
            at += length

    def cut(self, moment: int, image: Path, chance: random.Random) -> None:
        """Write the disk as it may be if power is lost after so many events."""
        before = self.events[:moment]
        flushed = max((index for index, event in enumerate(before) if event is None), default=-1)
        with image.open("wb") as file:
            file.truncate(self.size)
            for index, event in enumerate(before):
                if event is None:
                    continue
                offset, content = event
                if index < flushed:
                    file.seek(offset)
                    file.write(content)
                    continue
                for start in range(0, len(content), SECTOR):
                    if chance.random() < 0.5:
                        file.seek(offset + start)
                        file.write(content[start : start + SECTOR])


def main() -> None:
    """Serve until unmounted."""
    import mfusepy

    class Recorder(mfusepy.Operations):  # type: ignore[misc]
        use_ns = True

        def __init__(self, size: int, log: str) -> None:
            self.content = bytearray(size)
            self.log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

        def getattr(self, path: str, fh: Any = None) -> dict[str, int]:
            if path == "/":
                return {"st_mode": stat.S_IFDIR | 0o700, "st_nlink": 2}
            if path == "/disk":
                return {"st_mode": stat.S_IFREG | 0o600, "st_nlink": 1, "st_size": len(self.content)}
            raise mfusepy.FuseOSError(errno.ENOENT)

        def readdir(self, path: str, fh: Any) -> list[str]:
            return [".", "..", "disk"]

        def read(self, path: str, size: int, offset: int, fh: Any) -> bytes:
            return bytes(self.content[offset : offset + size])

        def write(self, path: str, data: bytes, offset: int, fh: Any) -> int:
            self.content[offset : offset + len(data)] = data
            os.writev(self.log, [_HEAD.pack(_WRITE, offset, len(data)), data])
            return len(data)

        def fsync(self, path: str, datasync: int, fh: Any) -> int:
            os.write(self.log, _HEAD.pack(_FLUSH, 0, 0))
            return 0

    mountpoint, size, log = sys.argv[1:]
    mfusepy.FUSE(Recorder(int(size), log), mountpoint, foreground=True, nothreads=True, fsname="recorder")


if __name__ == "__main__":
    main()
