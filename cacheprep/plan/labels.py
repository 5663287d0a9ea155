"""Readiness labels: on a node if and only if its agent says, of this life of the node, that it has the cache,
verified."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from cacheprep.api import ModelDataCacheConfig
from cacheprep.api.names import IMAGE_READY, READY, WEIGHTS_READY
from cacheprep.plan.actions import LabelNode
from cacheprep.plan.draft import Draft
from cacheprep.plan.observed import Node, Observed
from cacheprep.plan.possession import verified


def label_of(cache: ModelDataCacheConfig) -> str:
    """The label of nodes that have a cache."""
    return WEIGHTS_READY + cache.uid


def label(observed: Observed, cache: ModelDataCacheConfig, kept: bool, draft: Draft) -> None:
    """Have the label of a cache on the nodes that have it; on none if it is not `kept` any more."""
    name = label_of(cache)
    for node in observed.nodes:
        has = kept and not node.deleting and verified(observed, node, cache)
        if has and node.labels.get(name) != READY:
            draft.add(LabelNode(node.name, node.uid, name, READY, f"it has {cache.name}, verified"))
        elif not has and name in node.labels:
            why = f"it has not got {cache.name}, verified" if kept else f"{cache.name} is let go"
            draft.add(LabelNode(node.name, node.uid, name, None, why))


def labelled(observed: Observed, cache: ModelDataCacheConfig) -> bool:
    """Whether a node still has the label of a cache."""
    name = label_of(cache)
    return any(name in node.labels for node in observed.nodes)


def orphans(nodes: Iterable[Node], uids: Collection[str]) -> Iterator[LabelNode]:
    """Labels of caches that are no more: their objects went without the operator, as with their namespace.

    Args:
        nodes: all nodes.
        uids: of all ModelDataCacheConfigs and ModelImageCaches of the cluster.
    """
    for node in nodes:
        for name in sorted(node.labels):
            prefix = next((one for one in (WEIGHTS_READY, IMAGE_READY) if name.startswith(one)), None)
            if prefix is not None and name.removeprefix(prefix) not in uids:
                yield LabelNode(node.name, node.uid, name, None, "its cache is no more")
