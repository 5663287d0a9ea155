"""Evict ready caches to make room: the least recently used first, never one in use."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from enum import StrEnum

from cacheprep.failures import Failure
from cacheprep.store.inventory import Entry, entry_of, inventory
from cacheprep.store.layout import Layout
from cacheprep.store.remove import remove

IDLE_S = 600.0
"""Seconds since a cache was last asked for before it may go: a pod that `ensure` let start must get to
load it."""


class Policy(StrEnum):
    """What may be removed to make room for a cache that is being fetched."""

    NONE = "none"
    """Nothing."""
    LRU = "lru"
    """Ready caches, the least recently used first."""


def choose(
    entries: Iterable[Entry], lacking: int, now: float, idle_s: float = IDLE_S, keep: Collection[str] = ()
) -> list[str]:
    """Which caches to remove so that `lacking` bytes become free. Pure.

    Args:
        entries: all caches of the root.
        lacking: bytes.
        now: Unix time, s.
        idle_s: seconds for which a cache must not have been asked for.
        keep: keys that must stay, as those of the node's pods.

    Returns:
        keys, the least recently used first; none at all if even all of them would not do.
    """
    may_go = [
        entry
        for entry in entries
        if entry.ready
        and not entry.in_use
        and not entry.busy
        and entry.key not in keep
        and now - (entry.used_at or 0) >= idle_s
    ]
    may_go.sort(key=lambda entry: (entry.used_at or 0, entry.key))
    chosen: list[str] = []
    freed = 0
    for entry in may_go:
        if freed >= lacking:
            break
        chosen.append(entry.key)
        freed += entry.allocated
    return chosen if freed >= lacking else []


def evict(
    layout: Layout, lacking: int, now: float, idle_s: float = IDLE_S, keep: Collection[str] = ()
) -> list[Entry]:
    """Remove what `choose` chooses; the caches that are gone. One that got used meanwhile stays."""
    gone = []
    for key in choose(inventory(layout), lacking, now, idle_s, keep):
        entry = entry_of(layout, key)
        try:
            if entry is not None and remove(layout, key):
                gone.append(entry)
        except Failure:
            continue
    return gone
