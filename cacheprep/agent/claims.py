"""Which caches of a node's disks somebody claims, and which may go. Pure.

A cache is claimed by every ModelDataCacheConfig of its namespace that names its root and key and is not being
released (`cacheprep.plan.release.wants`). One that nobody claims goes when no pod of the node uses it: at
once if it is being released, else after `ORPHAN_SECONDS`, lest all disks be emptied because somebody deletes
the kind by mistake and brings it back.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple


class Place(NamedTuple):
    """A cache on a disk."""

    root: str
    """The cache root as the operator names it."""
    namespace: str
    key: str


class Claims(NamedTuple):
    """What the cluster says of the caches of a node."""

    wanted: frozenset[Place]
    """By ModelDataCacheConfigs."""
    released: frozenset[Place]
    """By those that are being released; they may be wanted by others."""
    used: frozenset[tuple[str, str]]
    """Namespace and key of pods of this node that have not ended."""


class Removal(NamedTuple):
    """A cache that may go, and why."""

    place: Place
    why: str


ORPHAN_SECONDS = 900.0


def removable(
    there: Iterable[Place],
    claims: Claims,
    unclaimed_since: Mapping[Place, float],
    now: float,
    *,
    pressure: Collection[str] = (),
    orphan_seconds: float = ORPHAN_SECONDS,
) -> list[Removal]:
    """What may be removed now.

    Args:
        there: caches on the disks, in whatever state.
        claims: of this moment.
        unclaimed_since: when a cache was first seen without a claim (monotonic, s); absent: just now.
        now: monotonic, s.
        pressure: roots whose disk has no room: what nobody claims goes at once there.
        orphan_seconds: how long what nobody claims stays elsewhere.
    """
    found = []
    for place in there:
        if place in claims.wanted or (place.namespace, place.key) in claims.used:
            continue
        if place in claims.released:
            found.append(Removal(place, "released"))
        elif place.root in pressure:
            found.append(Removal(place, "nobody claims it, and the disk is full"))
        elif now - unclaimed_since.get(place, now) >= orphan_seconds:
            found.append(Removal(place, f"nobody has claimed it for {orphan_seconds:.0f} s"))
    return found


def unclaimed(
    there: Iterable[Place], claims: Claims, before: Mapping[Place, float], now: float
) -> dict[Place, float]:
    """Since when each cache that nobody claims or uses is seen so (monotonic, s)."""
    return {
        place: before.get(place, now)
        for place in there
        if place not in claims.wanted and (place.namespace, place.key) not in claims.used
    }
