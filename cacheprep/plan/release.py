"""How a cache goes: labels, then files, then its object.

Agents remove from their nodes what no ModelDataCacheConfig of the namespace wants and no pod there uses
(`removable`). The object is deleted once they have confirmed it: nodes that are gone are not waited for, and
the others not for ever.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cacheprep.api import ModelDataCacheConfig
from cacheprep.api.caches import CacheOnNode, DataCacheState
from cacheprep.api.conditions import ConditionType, Reason
from cacheprep.api.model import MOST_MESSAGE, seconds
from cacheprep.plan.actions import Delete, Event
from cacheprep.plan.conditions import Changes
from cacheprep.plan.draft import Draft
from cacheprep.plan.labels import label, labelled
from cacheprep.plan.observed import Observed
from cacheprep.plan.possession import entry
from cacheprep.plan.resolve import forget
from cacheprep.plan.status import told, write_status
from cacheprep.plan.versions import in_use


def wants(cache: ModelDataCacheConfig) -> bool:
    """Whether a cache is to be on nodes."""
    return cache.status.state is not DataCacheState.RELEASING and not cache.deleting


def removable(caches: Iterable[ModelDataCacheConfig], found: CacheOnNode) -> bool:
    """Whether an agent may remove a cache that it found on its node.

    Args:
        caches: all ModelDataCacheConfigs of the namespace.
        found: what is on the disk. In use is what a pod of the node has in its annotation `CACHE_KEY`.
    """
    place = (found.namespace, found.root, found.key)
    wanted = any(
        wants(cache) and (cache.namespace, cache.spec.host_path, cache.status.key) == place
        for cache in caches
    )
    return not wanted and not found.in_use


def holders(observed: Observed, cache: ModelDataCacheConfig) -> list[str]:
    """Nodes that are there and have a key, or part of it, that no other cache of the namespace wants."""
    if cache.status.key is None:
        return []
    place = (cache.namespace, cache.spec.host_path, cache.status.key)
    shared = any(
        other.name != cache.name
        and wants(other)
        and (other.namespace, other.spec.host_path, other.status.key) == place
        for other in observed.data_caches
    )
    if shared:
        return []
    return sorted(
        name
        for name, said in observed.node_caches.items()
        if name in observed.node_named and entry(said, cache) is not None
    )


class _Left(NamedTuple):
    """What is still in the way of a cache's end."""

    reason: Reason
    message: str


def _tell(observed: Observed, cache: ModelDataCacheConfig, why: str, draft: Draft) -> None:
    endpoint = observed.endpoint
    place = (endpoint.kind, endpoint.namespace, endpoint.name, endpoint.uid)
    message = f"{cache.name}, key {cache.status.key}: {why}"
    draft.add(Event(*place, True, Reason.CLEANUP_TIMED_OUT.value, message[:MOST_MESSAGE], why))


def _left(observed: Observed, cache: ModelDataCacheConfig) -> _Left | None:
    if in_use(observed, cache):
        return _Left(Reason.WAITING_FOR_PODS, "pods of the endpoint load it")
    nodes = holders(observed, cache)
    if nodes:
        return _Left(Reason.REMOVING, f"on {told(nodes)}")
    if labelled(observed, cache):
        return _Left(Reason.REMOVING, "labels of nodes")
    return None


def release(observed: Observed, cache: ModelDataCacheConfig, draft: Draft) -> None:
    """Have a cache go that is not wanted any more."""
    for job in observed.jobs:
        if (job.namespace, job.cache) == (cache.namespace, cache.name):
            forget(draft, job, f"{cache.name} is let go")
    label(observed, cache, False, draft)
    left = _left(observed, cache)
    if left is None:
        if not cache.deleting:
            why = "nothing of it is left on any node"
            draft.add(Delete(cache.kind, cache.namespace, cache.name, why))
        return
    changes = Changes(cache.status.conditions, cache.metadata.generation, observed.now)
    if left.reason is Reason.REMOVING:
        changes.set(ConditionType.CLEANED_UP, False, left.reason, left.message)
        since = changes.conditions[0].last_transition_time.timestamp()
        patience = seconds(observed.endpoint.spec.cache_policy.cleanup_timeout)
        if observed.now - since >= patience:
            why = f"cleanupTimeout is over; not confirmed: {left.message}"
            draft.add(Delete(cache.kind, cache.namespace, cache.name, why))
            _tell(observed, cache, why, draft)
            return
        draft.wake(since + patience)
    else:
        changes.set(ConditionType.CACHED, False, left.reason, left.message)
    status = cache.status.model_copy(
        update={"state": DataCacheState.RELEASING, "conditions": changes.conditions, "not_ready": ()}
    )
    write_status(cache, status, f"let go: {left.message}", draft)
