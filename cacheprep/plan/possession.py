"""Which nodes have a cache, as far as their agents say so of the same life of the node."""

from __future__ import annotations

from cacheprep.api import ModelDataCacheConfig, NodeModelCache
from cacheprep.api.caches import CacheOnNode
from cacheprep.plan.observed import Node, Observed
from cacheprep.store.layout import State


def report(observed: Observed, node: Node) -> NodeModelCache | None:
    """What the agent of a node says, if it speaks of this node since its last start.

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
