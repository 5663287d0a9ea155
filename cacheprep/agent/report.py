"""What an agent says of its node in NodeModelCache, and when that is worth a write. Pure."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from cacheprep.agent.claims import Claims
from cacheprep.agent.disks import Disks, Found
from cacheprep.api.caches import (
    HEARTBEAT_SECONDS,
    MOST_CACHES_OF_A_NODE,
    PROGRESS_SECONDS,
    PROGRESS_SHARE,
    CacheOnNode,
    NodeCacheStatus,
    NodeModelCache,
)
from cacheprep.api.model import MOST_MESSAGE, JsonObject, moment
from cacheprep.store.layout import State

ROOM_SHARE = 0.01
"""Room on a disk is told anew once so much of the disk has come or gone."""


class Node(NamedTuple):
    """A life of a node: a node that is made anew under its name, or boots, is another."""

    name: str
    uid: str
    boot_id: str


def status_of(disks: Disks, node: Node, claims: Claims | None, at: datetime, version: str) -> NodeCacheStatus:
    """What is to be said.

    Args:
        disks: as found.
        node: whose they are.
        claims: by which caches are in use; None while they are not known.
        at: when they were looked at, UTC.
        version: of the agent.
    """
    order = [State.READY, State.PARTIAL, State.UNMARKED]
    caches = sorted(disks.caches, key=lambda found: (order.index(found.entry.state), found.place))
    return NodeCacheStatus(
        node_uid=node.uid,
        boot_id=node.boot_id,
        observed_at=at.replace(microsecond=0),
        agent_version=version,
        roots=disks.roots,
        caches=tuple(_cache(found, claims) for found in caches[:MOST_CACHES_OF_A_NODE]),
    )


def worth_writing(before: NodeCacheStatus | None, after: NodeCacheStatus) -> bool:
    """Whether `after` says something that `before`, which is written, does not."""
    if before is None or before.observed_at is None or after.observed_at is None:
        return True
    if _essence(before) != _essence(after):
        return True
    age = (after.observed_at - before.observed_at).total_seconds()
    if age >= HEARTBEAT_SECONDS:
        return True
    return age >= PROGRESS_SECONDS and (_progressed(before, after) or _room(before, after))


def written(node: Node, status: NodeCacheStatus) -> tuple[JsonObject, JsonObject]:
    """The object, which goes with its node, and the object with its status."""
    head = {"apiVersion": NodeModelCache.model_fields["api_version"].default, "kind": NodeModelCache.KIND}
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
    return (
        {**head, "metadata": {"name": node.name, "ownerReferences": [owner]}, "spec": {}},
        {**head, "metadata": {"name": node.name}, "status": status.write()},
    )


def _cache(found: Found, claims: Claims | None) -> CacheOnNode:
    entry, place = found.entry, found.place
    return CacheOnNode(
        namespace=place.namespace,
        root=place.root,
        key=place.key,
        state=entry.state,
        bytes_total=entry.bytes,
        bytes_done=entry.bytes_done,
        bytes_per_second=entry.bytes_per_second,
        verified_at=None if entry.verified_at is None else moment(entry.verified_at),
        in_use=entry.in_use or (claims is not None and (place.namespace, place.key) in claims.used),
        message=entry.problem[:MOST_MESSAGE],
    )


def _essence(status: NodeCacheStatus) -> NodeCacheStatus:
    """Without what changes all the time."""
    return status.model_copy(
        update={
            "observed_at": None,
            "conditions": (),
            "roots": tuple(root.model_copy(update={"available_bytes": 0}) for root in status.roots),
            "caches": tuple(
                _still(cache) if cache.state is State.PARTIAL else cache for cache in status.caches
            ),
        }
    )


def _still(cache: CacheOnNode) -> CacheOnNode:
    """Whether somebody fetches it, and not how far that is."""
    rate = None if cache.bytes_per_second is None else 0
    return cache.model_copy(update={"bytes_done": 0, "bytes_per_second": rate})


def _progressed(before: NodeCacheStatus, after: NodeCacheStatus) -> bool:
    return any(
        abs(new.bytes_done - old.bytes_done) >= max(1, PROGRESS_SHARE * new.bytes_total)
        for old, new in zip(before.caches, after.caches, strict=True)
    )


def _room(before: NodeCacheStatus, after: NodeCacheStatus) -> bool:
    return any(
        abs(new.available_bytes - old.available_bytes) >= max(1, ROOM_SHARE * new.total_bytes)
        for old, new in zip(before.roots, after.roots, strict=True)
    )
