"""What an agent reads of the cluster: its node, the caches that are wanted, and the pods of its node."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cacheprep.agent.claims import Claims, Place
from cacheprep.agent.report import Node
from cacheprep.api.caches import DataCacheState, NodeCacheStatus, NodeModelCache
from cacheprep.api.names import CACHE_KEY
from cacheprep.api.serving import Mount
from cacheprep.objects import RESOURCES, Json
from extproc.pool.discovery.kubernetes import Listing


class Wanted(NamedTuple):
    """A ModelDataCacheConfig; `place` is None until its source was listed.

    `claimed` is the root, and its namespace, of one that pods reach by a claim; else None.
    """

    place: Place | None
    released: bool
    claimed: tuple[str, str] | None = None


Caches = Mapping[str, Wanted]
Pods = Mapping[str, tuple[str, str] | None]
"""Namespace and cache key by uid; None for one that uses no cache, or has ended."""


def node(name: str) -> Listing[Node]:
    """The Node of a name."""
    return Listing(RESOURCES["Node"], "", _node, name=name)


def caches() -> Listing[Wanted]:
    """All ModelDataCacheConfigs."""
    return Listing(RESOURCES["ModelDataCacheConfig"], "", _wanted)


def pods(node: str) -> Listing[tuple[str, str] | None]:
    """The pods of a node."""
    return Listing(RESOURCES["Pod"], "", _used, fields=f"spec.nodeName={node}")


def report(node: str) -> Listing[NodeCacheStatus]:
    """What was last written of a node."""
    return Listing(RESOURCES["NodeModelCache"], "", lambda item: NodeModelCache.read(item).status, name=node)


def claims(caches: Iterable[Wanted], pods: Iterable[tuple[str, str] | None]) -> Claims:
    """What they come to."""
    caches = list(caches)
    return Claims(
        wanted=frozenset(one.place for one in caches if one.place is not None and not one.released),
        released=frozenset(one.place for one in caches if one.place is not None and one.released),
        used=frozenset(one for one in pods if one is not None),
    )


def _node(item: Json) -> Node:
    metadata = item["metadata"]
    return Node(metadata["name"], metadata["uid"], item["status"]["nodeInfo"]["bootID"])


def _wanted(item: Json) -> Wanted:
    # Not by the model, which refuses what a newer release writes: an object that is left out claims nothing.
    status = item.get("status") or {}
    key = status.get("key")
    place = Place(item["spec"]["hostPath"], item["metadata"]["namespace"], key) if key else None
    deleting = bool(item["metadata"].get("deletionTimestamp"))
    released = deleting or status.get("state") == DataCacheState.RELEASING
    by_claim = item["spec"].get("mount") == Mount.PVC and not released
    claimed = (item["spec"]["hostPath"], item["metadata"]["namespace"]) if by_claim else None
    return Wanted(place, released, claimed)


def _used(item: Json) -> tuple[str, str] | None:
    metadata = item["metadata"]
    key = (metadata.get("annotations") or {}).get(CACHE_KEY)
    ended = (item.get("status") or {}).get("phase") in ("Succeeded", "Failed")
    return None if not key or ended else (metadata["namespace"], key)
