"""How much a cache root may still take. Pure but for `measure`.

A disk is as full as df(1) says: used / (used + available), where `available` leaves out what the file system
keeps for root. kubelet computes its thresholds from the same figures.
"""

from __future__ import annotations

import os
from typing import NamedTuple

SHARED_WATERMARK = 0.80
"""Of a disk that is not the cache's own: kubelet deletes images from 85 % on, down to 80 %
(imageGCHighThresholdPercent, imageGCLowThresholdPercent in KubeletConfiguration), and we stay out of its
way."""
OWN_WATERMARK = 0.95
"""Of a disk of our own: file systems slow down when they are all but full."""
SLACK = 1 << 20
"""Bytes kept for what a file system writes beside files: extents, journal, our own small files."""


class Disk(NamedTuple):
    """A file system at one moment; bytes."""

    used: int
    available: int
    block: int
    """Size of an allocation unit."""
    free_inodes: int | None
    """None where the file system makes them as needed."""

    def fullness(self, more: int = 0) -> float:
        """Part in use after `more` bytes are written, as df computes it: 0 to 1, above 1 if they do not
        fit."""
        size = self.used + self.available
        return (self.used + more) / size if size else 1.0


class Limits(NamedTuple):
    """What must stay free."""

    watermark: float
    """Part of the disk that may be in use at most, 0 to 1."""
    reserve: int = 0
    """Bytes that must stay available whatever the watermark says: kubelet's, for images and logs."""


class Need(NamedTuple):
    """What a cache takes on a disk."""

    bytes: int
    inodes: int


def measure(path: str) -> Disk:
    """The file system of `path` now."""
    found = os.statvfs(path)
    return Disk(
        used=(found.f_blocks - found.f_bfree) * found.f_frsize,
        available=found.f_bavail * found.f_frsize,
        block=found.f_frsize,
        free_inodes=found.f_favail if found.f_files else None,
    )


def room(disk: Disk, limits: Limits, outstanding: int) -> int:
    """Bytes that may still be reserved; negative if the disk is over its limits already.

    Args:
        disk: as measured.
        limits: what must stay free.
        outstanding: bytes reserved by others that are not allocated yet, so that `disk` does not show them.
    """
    by_watermark = int(limits.watermark * (disk.used + disk.available)) - disk.used
    return min(by_watermark, disk.available - limits.reserve) - outstanding


def need(sizes: list[int], directories: int, block: int) -> Need:
    """What files of these sizes (bytes) in so many directories take on a disk of this block size."""
    blocks = sum(-(-size // block) for size in sizes)
    # A directory entry takes 8 bytes and its name; a block for every 16 files is more than any name needs.
    names = directories + len(sizes) // 16 + 1
    return Need((blocks + names) * block + SLACK, len(sizes) + directories + 8)
