"""The end of an endpoint: nothing of it is left, and then its finalizer goes. It always goes."""

from __future__ import annotations

from cacheprep.api.conditions import ConditionType, Reason
from cacheprep.api.model import seconds
from cacheprep.api.names import FINALIZER
from cacheprep.api.serving import Phase
from cacheprep.plan.actions import Delete, SetFinalizer
from cacheprep.plan.conditions import Changes
from cacheprep.plan.draft import Draft
from cacheprep.plan.events import tell
from cacheprep.plan.images import keep_images
from cacheprep.plan.observed import Observed
from cacheprep.plan.release import holders, release
from cacheprep.plan.settings import Settings
from cacheprep.plan.status import told, write_status
from cacheprep.plan.warm import withdraw


def clean_up(observed: Observed, settings: Settings, draft: Draft) -> None:
    """Have everything go that was made for an endpoint which is being deleted."""
    endpoint = observed.endpoint
    if FINALIZER not in endpoint.metadata.finalizers:
        return
    deployment = observed.deployment
    why = f"{endpoint.kind} {endpoint.name} is deleted"
    if deployment is not None and deployment.ours and not deployment.deleting:
        draft.add(Delete("Deployment", endpoint.namespace, endpoint.name, why))
    for one in observed.objects:
        if one.endpoint == endpoint.uid and not one.deleting and one.kind in _OWN:
            draft.add(Delete(one.kind, endpoint.namespace, one.name, why))
    withdraw(observed, draft)
    for name in sorted(observed.own_caches):
        release(observed, observed.own_caches[name], draft)
    keep_images(observed, settings, draft)
    left = _left(observed)
    deadline = _deadline(observed)
    if left and observed.now < deadline:
        draft.wake(deadline)
        changes = Changes(endpoint.status.conditions, endpoint.metadata.generation, observed.now)
        changes.set(ConditionType.CLEANED_UP, False, Reason.REMOVING, f"left: {told(left)}")
        status = endpoint.status.model_copy(
            update={"phase": Phase.DELETING, "conditions": changes.conditions}
        )
        write_status(endpoint, status, f"left: {told(left)}", draft)
        tell(observed, changes, draft)
        return
    if left:
        changes = Changes((), endpoint.metadata.generation, observed.now)
        said = f"not confirmed when cleanupTimeout was over: {told(left)}"
        changes.set(ConditionType.CLEANED_UP, False, Reason.CLEANUP_TIMED_OUT, said)
        tell(observed, changes, draft)
    why = f"left after cleanupTimeout: {told(left)}" if left else "nothing of it is left"
    draft.add(SetFinalizer(endpoint.kind, endpoint.namespace, endpoint.name, False, why))


_OWN = frozenset({"Service", "ConfigMap", "HorizontalPodAutoscaler"})


def _left(observed: Observed) -> list[str]:
    """What there is still of an endpoint."""
    endpoint, deployment = observed.endpoint, observed.deployment
    left = []
    # First, for what is told ends somewhere: files on nodes are what people then have to see to.
    for name, cache in sorted(observed.own_caches.items()):
        nodes = holders(observed, cache)
        left.append(f"ModelDataCacheConfig {name}" + (f" on {told(nodes)}" if nodes else ""))
    left += [f"pod {pod.name}" for pod in observed.own_pods]
    if deployment is not None and deployment.ours:
        left.append(f"Deployment {endpoint.name}")
    left += [f"EndpointSlice {one.name}" for one in observed.slices]
    shared = [
        f"ModelImageCache {cache.name}"
        for cache in observed.image_caches
        if [ref.uid for ref in cache.spec.endpoint_refs] == [endpoint.uid]
    ]
    return left + shared


def _deadline(observed: Observed) -> float:
    endpoint = observed.endpoint
    told_at = endpoint.metadata.deletion_timestamp
    since = told_at.timestamp() if told_at is not None else observed.now
    return since + seconds(endpoint.spec.cache_policy.cleanup_timeout)
