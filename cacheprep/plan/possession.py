"""Which nodes have a cache, as far as their agents say so of the same life of the node."""

from __future__ import annotations

from cacheprep.api import ModelDataCacheConfig, NodeModelCache
from cacheprep.api.caches import HEARTBEAT_SECONDS, CacheOnNode
from cacheprep.plan.observed import Node, Observed
from cacheprep.store.layout import State

SILENT_SECONDS = 3 * HEARTBEAT_SECONDS
"""After so long without a word from its agent, what it said of a Ready node does not count any more."""


def report(observed: Observed, node: Node) -> NodeModelCache | None:
    """What the agent of a node says, if it speaks of this node since its last start, and still does."""
    return None if silent(observed, node) else _spoken(observed, node)


def silent(observed: Observed, node: Node) -> bool:
    """Whether the agent of a Ready node spoke of it, and does not any more: what is on its disk is unknown.

    An agent on a node that is not Ready need not be to blame; nobody puts pods there.
    """
    at = silent_at(observed, node)
    return node.ready and at is not None and observed.now >= at


def silent_at(observed: Observed, node: Node) -> float | None:
    """When the agent of a node is to be called silent, if it is not heard before, s since the epoch.

    None if it has said nothing of this life of the node.
    """
    said = _spoken(observed, node)
    if said is None or said.status.observed_at is None:
        return None
    heard = observed.heard.get(node.name, said.status.observed_at.timestamp())
    return max(heard, node.ready_since) + SILENT_SECONDS


def _spoken(observed: Observed, node: Node) -> NodeModelCache | None:
    """What the agent of a node said last, if that is about this life of the node.

    A node that is made anew under its name has another uid, and one that was started again another boot id:
    what was said before says nothing about its disks.
    """
    said = observed.node_caches.get(node.name)
    if said is None or (said.status.node_uid, said.status.boot_id) != (node.uid, node.boot_id):
        return None
    return said


def entry(said: NodeModelCache | None, cache: ModelDataCacheConfig) -> CacheOnNode | None:
    """What an agent says of one cache."""
    if said is None:
        return None
    wanted = (cache.namespace, cache.spec.host_path, cache.status.key)
    return next((one for one in said.status.caches if (one.namespace, one.root, one.key) == wanted), None)


def verified(observed: Observed, node: Node, cache: ModelDataCacheConfig) -> bool:
    """Whether the node has every byte of the cache, verified in this life of the node."""
    found = entry(report(observed, node), cache)
    return found is not None and found.state is State.READY
