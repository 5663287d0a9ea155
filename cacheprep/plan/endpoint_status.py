"""What is said of an endpoint: its status, and conditions, those of its caches among them."""

from __future__ import annotations

from collections.abc import Sequence

from cacheprep.api import ModelDataCacheConfig
from cacheprep.api.conditions import ConditionType, Reason
from cacheprep.api.model import moment
from cacheprep.api.serving import Phase, Rollover, ServingStatus
from cacheprep.plan.conditions import Changes
from cacheprep.plan.draft import Draft
from cacheprep.plan.drift import say_drift
from cacheprep.plan.events import tell
from cacheprep.plan.gate import Gate
from cacheprep.plan.identity import image_cache_name
from cacheprep.plan.images import keeps_images
from cacheprep.plan.observed import Node, Observed
from cacheprep.plan.possession import verified
from cacheprep.plan.status import told, write_status
from cacheprep.plan.versions import Versions
from cacheprep.plan.workload import images


def say_endpoint(
    observed: Observed,
    which: Versions,
    gate: Gate | None,
    targets: Sequence[Node],
    listing_requested: str | None,
    problem: tuple[Reason, str] | None,
    draft: Draft,
) -> None:
    """Write the status of the endpoint, and an Event for each condition that is another than before.

    Args:
        observed: what is.
        which: caches of the endpoint.
        gate: of the wanted cache, None if weights are not cached.
        targets: its target nodes.
        listing_requested: the word for a new listing, once there is one it stays.
        problem: why nothing is done for it.
        draft: takes the actions.
    """
    endpoint, deployment = observed.endpoint, observed.deployment
    before = endpoint.status
    changes = Changes(before.conditions, endpoint.metadata.generation, observed.now)
    opened = before.gate_opened_at
    if problem is not None:
        changes.set(ConditionType.GATE_OPEN, opened is not None, *problem)
    elif gate is None:
        changes.set(ConditionType.GATE_OPEN, True, Reason.NOT_GATED, "weights are not cached")
    elif which.rolling_over:
        changes.set(ConditionType.GATE_OPEN, True, Reason.ENOUGH_NODES_READY, "it was open before")
    else:
        changes.set(ConditionType.GATE_OPEN, gate.open, gate.reason, gate.message)
    if gate is not None and gate.open and problem is None:
        opened = opened or moment(observed.now)
    _available(observed, changes)
    _rollover(observed, which, gate, changes)
    cache = which.wanted or which.active
    ready = 0
    if cache is not None:
        ready = sum(verified(observed, node, cache) for node in targets)
        say_drift(observed, cache, changes)
    _of_caches(observed, cache, changes)
    serving = deployment is not None and deployment.ours and deployment.ready_replicas > 0
    status = ServingStatus(
        observed_generation=endpoint.metadata.generation,
        phase=_phase(which, deployment is not None, serving, problem is not None),
        active_cache=which.active.name if which.active is not None else None,
        next_cache=which.wanted_name if which.rolling_over else None,
        cache_key=which.active.status.key if which.active is not None else None,
        listing_requested=listing_requested or before.listing_requested,
        gate_opened_at=opened,
        target=len(targets) if cache is not None else 0,
        ready=ready,
        replicas=deployment.replicas if deployment is not None else 0,
        ready_replicas=deployment.ready_replicas if deployment is not None else 0,
        conditions=changes.conditions,
    )
    write_status(endpoint, status, f"{status.phase.value}: {ready} of {len(targets)} nodes", draft)
    tell(observed, changes, draft)


def _of_caches(observed: Observed, cache: ModelDataCacheConfig | None, changes: Changes) -> None:
    """What is said of the caches is said of the endpoint, so that who looks at that alone knows why."""
    if cache is not None:
        for one in cache.status.conditions:
            if one.type in (ConditionType.RESOLVED, ConditionType.CACHED):
                changes.copy(one)
    if not keeps_images(observed.endpoint):
        return
    of_images = [
        one
        for name in map(image_cache_name, images(observed.endpoint))
        for cached in observed.image_caches
        if cached.name == name
        for one in cached.status.conditions
        if one.type == ConditionType.IMAGE_CACHED
    ]
    if of_images:
        # The first that something is wrong with, else that of the engine's image.
        changes.copy(min(of_images, key=lambda one: one.status == "True"))


def _available(observed: Observed, changes: Changes) -> None:
    deployment = observed.deployment
    taken = set(observed.foreign)
    if deployment is not None and not deployment.ours:
        taken.add(f"Deployment/{observed.endpoint.name}")
    if taken:
        said = f"{told(sorted(taken))} is there, and not of this object"
        changes.set(ConditionType.AVAILABLE, False, Reason.NAME_TAKEN, said)
    elif deployment is None:
        changes.set(ConditionType.AVAILABLE, False, Reason.NOT_SERVING, "there is no Deployment yet")
    elif not deployment.ready_replicas:
        changes.set(ConditionType.AVAILABLE, False, Reason.NOT_SERVING, "no pod is ready")
    else:
        reason = Reason.SERVING if deployment.rolled_out else Reason.ROLLING_OUT
        changes.set(ConditionType.AVAILABLE, True, reason, "pods serve")


def _rollover(observed: Observed, which: Versions, gate: Gate | None, changes: Changes) -> None:
    """A rollover is under way from when another cache is wanted until all pods load that one."""
    kind, before = ConditionType.ROLLING_OVER, changes.before(ConditionType.ROLLING_OVER)
    under_way = which.rolling_over or (before is not None and before.status == "True")
    loaded = which.active is not None and which.active.name == which.wanted_name
    deployment = observed.deployment
    if not under_way or which.wanted_name is None or (loaded and deployment and deployment.rolled_out):
        if under_way or before is not None:
            changes.set(kind, False, Reason.COMPLETE, "pods load what is wanted")
        return
    if loaded:
        changes.set(
            kind, True, Reason.ROLLING_OUT, f"pods are replaced by those that load {which.wanted_name}"
        )
        return
    breaks = observed.endpoint.spec.cache_policy.rollover is Rollover.BREAK_BEFORE_MAKE
    said = f"from {which.active.name} to {which.wanted_name}" if which.active else f"to {which.wanted_name}"
    if gate is not None:
        said += f"; {gate.message}"
    changes.set(kind, True, Reason.MAKING_ROOM if breaks else Reason.FILLING_NEXT, said)


def _phase(which: Versions, deployed: bool, serving: bool, problem: bool) -> Phase:
    if problem:
        return Phase.SERVING if serving else Phase.FAILED
    if which.rolling_over:
        return Phase.ROLLING_OVER
    if serving:
        return Phase.SERVING
    return Phase.DEPLOYING if deployed else Phase.CACHING
