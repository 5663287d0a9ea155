"""How far the process is that fetches a cache, for who looks at the disk: `ls`, and a node's agent.

The journal knows ranges that came whole, and on a slow link none has for minutes. One line, which the process
that holds the fill lock writes anew every few seconds and never syncs:

    <bytes done> <bytes per second>

It counts only while that lock is held. What a dead process left is removed before the next one begins.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from cacheprep.store.layout import FILE_MODE, Layout

_LONGEST = 64
"""Bytes of the line."""
_MOST = 1 << 50
"""No cache has more bytes, and none is fetched faster."""


class Progress(NamedTuple):
    """Where a fetch is."""

    bytes_done: int
    """Of the cache: known to be right, or come and not yet known to be wrong."""
    bytes_per_second: int


def write(layout: Layout, key: str, progress: Progress) -> None:
    """Say how far the fetch of a key is; on a disk that takes nothing more, nothing is said.

    The caller holds the key's fill lock, and calls from one thread at a time.
    """
    path = layout.progress(key)
    with suppress(OSError):
        new = os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
        try:
            os.write(new, f"{progress.bytes_done} {progress.bytes_per_second}\n".encode())
        finally:
            os.close(new)
        os.replace(f"{path}.new", path)


def read(layout: Layout, key: str) -> Progress | None:
    """What was said last; None if nothing was, or nothing that can be read."""
    try:
        # It need not be a file of ours: a link is not followed, and a pipe not waited for.
        fd = os.open(layout.progress(key), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            done, rate = map(int, os.read(fd, _LONGEST).split())
        finally:
            os.close(fd)
    except (OSError, ValueError):
        return None
    return Progress(done, rate) if 0 <= min(done, rate) <= max(done, rate) <= _MOST else None


def forget(layout: Layout, key: str) -> None:
    """Remove what a process said that has died."""
    with suppress(FileNotFoundError):
        os.unlink(layout.progress(key))
