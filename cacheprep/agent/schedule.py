"""When a node's caches are verified by reading every byte. Pure.

Each look at the disks compares kind, size and mtime of every file with the marker, which costs a stat a file.
What a disk loses without a trace is found only by reading: seldom, one cache at a time, at a bounded rate.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from cacheprep.agent.disks import Found

DEEP_SECONDS = 7 * 86400.0
"""Between two readings of all bytes of a cache. At 200 MB/s, 600 GB take 50 min of a week."""
DEEP_BYTES_PER_SECOND = 200e6
"""Disks of nodes that serve read some GB/s."""
SPREAD = 0.25
"""Part of the interval by which caches and nodes are spread out, so that a cluster that was filled at once
does not read all its disks at once."""


def due(found: Found, node: str, interval: float) -> float:
    """When (Unix time, s) a cache is to be read next."""
    drawn = int.from_bytes(sha256(f"{node}/{found.place.key}".encode()).digest()[:4]) / 2**32
    return (found.entry.verified_at or 0) + interval * (1 - SPREAD * drawn)


def next_deep(caches: Iterable[Found], node: str, now: float, interval: float = DEEP_SECONDS) -> Found | None:
    """The ready cache that has waited longest beyond its time; None if none has, or something is being
    fetched: the disk then has other work.

    Args:
        caches: of the node.
        node: its name.
        now: Unix time, s.
        interval: s between two readings.
    """
    caches = list(caches)
    if any(found.entry.busy for found in caches):
        return None
    waiting = [found for found in caches if found.entry.ready and due(found, node, interval) <= now]
    return min(waiting, key=lambda found: due(found, node, interval), default=None)
