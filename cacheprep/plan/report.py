"""What is said of an endpoint and its caches: status, conditions, and Events when a condition changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cacheprep.api import Endpoint, ModelDataCacheConfig
from cacheprep.api.caches import (
    MOST_NOT_READY,
    PROGRESS_SECONDS,
    PROGRESS_SHARE,
    DataCacheState,
    DataCacheStatus,
    NodeProgress,
)
from cacheprep.api.conditions import ConditionType, Reason, reason_named, reason_of
from cacheprep.api.model import moment
from cacheprep.api.serving import Phase, Rollover, ServingStatus
from cacheprep.plan.actions import Event
from cacheprep.plan.conditions import Changes
from cacheprep.plan.draft import Draft
from cacheprep.plan.drift import drifted
from cacheprep.plan.fill import eta
from cacheprep.plan.gate import Gate
from cacheprep.plan.identity import image_cache_name
from cacheprep.plan.images import keeps_images
from cacheprep.plan.observed import Component, JobState, Node, Observed
from cacheprep.plan.possession import entry, report, verified
from cacheprep.plan.resolve import jobs_of
from cacheprep.plan.status import told, write_status
from cacheprep.plan.versions import Versions
from cacheprep.plan.workload import images

_WAITS = frozenset({Reason.FILLING, Reason.WAITING_FOR_NODES})
_UNKNOWN = frozenset({Reason.AGENT_MISSING, Reason.AGENT_SILENT})
"""Of nodes that may have it or not."""
_WARNINGS = frozenset(
    {
        Reason.INVALID_REQUEST,
        Reason.ACCESS_DENIED,
        Reason.SOURCE_UNAVAILABLE,
        Reason.SOURCE_CHANGED,
        Reason.INTEGRITY_MISMATCH,
        Reason.INSUFFICIENT_CAPACITY,
        Reason.DEFECT,
        Reason.NODES_FAILED,
        Reason.JOB_PENDING,
        Reason.AGENT_MISSING,
        Reason.AGENT_SILENT,
        Reason.GATE_TIMED_OUT,
        Reason.HOST_PATH_NOT_ALLOWED,
        Reason.NAME_TAKEN,
        Reason.PULL_FAILED,
        Reason.ARCHITECTURE_MISMATCH,
        Reason.DIGEST_MISMATCH,
        Reason.POD_SECURITY,
        Reason.RIGHT_MISSING,
        Reason.CLEANUP_TIMED_OUT,
    }
)


def say_cache(
    observed: Observed,
    cache: ModelDataCacheConfig,
    targets: Sequence[Node],
    lacking: Sequence[NodeProgress],
    draft: Draft,
) -> None:
    """Write the status of a cache that is wanted.

    Args:
        observed: what is.
        cache: the cache.
        targets: its target nodes.
        lacking: those that have not got it.
        draft: takes the action.
    """
    before = cache.status
    changes = Changes(before.conditions, cache.metadata.generation, observed.now)
    state, resolved = _resolved(observed, cache, changes)
    if resolved:
        state = _cached(targets, lacking, changes)
        _drift(observed, cache, changes)
    ready = len(targets) - len(lacking)
    full = bool(targets) and resolved and not lacking
    done, rate = _moved(observed, cache, targets), _speed(lacking)
    whole = (before.total_bytes or 0) * len(targets)
    started = before.started_at or (moment(observed.now) if resolved else None)
    status = before.model_copy(
        update={
            "observed_generation": cache.metadata.generation,
            "state": state,
            "target": len(targets),
            "ready": ready,
            "bytes_done": done,
            "bytes_per_second": rate,
            "eta_seconds": eta(whole - done, rate),
            "started_at": started,
            "finished_at": before.finished_at or (moment(observed.now) if full else None),
            "not_ready": tuple(lacking[:MOST_NOT_READY]),
            "progress_at": moment(observed.now),
            "conditions": changes.conditions,
        }
    )
    if not _only_progress(before, status) or _worth_writing(cache, status, observed.now, draft):
        write_status(cache, status, f"{state.value}: {ready} of {len(targets)} target nodes", draft)


def _resolved(
    observed: Observed, cache: ModelDataCacheConfig, changes: Changes
) -> tuple[DataCacheState, bool]:
    if cache.status.key is not None:
        said = f"{cache.status.files} files, {cache.status.total_bytes} bytes, key {cache.status.key}"
        changes.set(ConditionType.RESOLVED, True, Reason.SOURCE_LISTED, said)
        return DataCacheState.FILLING, True
    jobs = jobs_of(observed, cache, Component.RESOLVE)
    if jobs and jobs[-1].state is JobState.FAILED:
        last = jobs[-1]
        reason = reason_of(last.failure)
        changes.set(ConditionType.RESOLVED, False, reason, last.message or f"Job {last.name} failed")
        return DataCacheState.FAILED, False
    if jobs and jobs[-1].waiting:
        said = f"Job {jobs[-1].name}: {jobs[-1].waiting}"
        changes.set(ConditionType.RESOLVED, False, Reason.JOB_PENDING, said)
        return DataCacheState.RESOLVING, False
    changes.set(ConditionType.RESOLVED, False, Reason.RESOLVING, "a Job lists the source")
    return DataCacheState.RESOLVING, False


def _cached(targets: Sequence[Node], lacking: Sequence[NodeProgress], changes: Changes) -> DataCacheState:
    failed = [one for one in lacking if reason_named(one.reason) not in _WAITS]
    said = f"{len(targets) - len(lacking)} of {len(targets)} target nodes have it"
    if not targets:
        changes.set(ConditionType.CACHED, False, Reason.NO_TARGET_NODES, "no node is there to put pods on")
        return DataCacheState.READY
    if not lacking:
        changes.set(ConditionType.CACHED, True, Reason.ALL_NODES_READY, said)
        return DataCacheState.READY
    if failed:
        reasons = {reason_named(one.reason) for one in failed}
        first = failed[0]
        reason = reason_named(first.reason) if len(reasons) == 1 else Reason.NODES_FAILED
        known = False if reasons - _UNKNOWN else None
        word = f"{first.reason}: " if reason is Reason.NODES_FAILED else ""
        changes.set(ConditionType.CACHED, known, reason, f"{said}; {first.node}: {word}{first.message}")
        return DataCacheState.DEGRADED
    changes.set(ConditionType.CACHED, False, Reason.FILLING, said)
    return DataCacheState.FILLING


def _drift(observed: Observed, cache: ModelDataCacheConfig, changes: Changes) -> None:
    kind = ConditionType.SOURCE_DRIFTED
    last = next(reversed(jobs_of(observed, cache, Component.DRIFT)), None)
    before, checked = changes.before(kind), cache.status.drift_checked_at
    if drifted(cache):
        said = f"the source now has {cache.status.drifted_key}, the cache is {cache.status.key}"
        changes.set(kind, True, Reason.SOURCE_CHANGED, said)
    elif last is not None and last.state is JobState.FAILED:
        said = f"the source could not be listed again: {last.message or f'Job {last.name} failed'}"
        changes.set(kind, None, reason_of(last.failure), said)
    elif last is not None and last.state is JobState.ACTIVE and before is not None:
        changes.copy(before)
    elif checked is not None:
        changes.set(kind, False, Reason.SOURCE_UNCHANGED, "as it was listed")


def _moved(observed: Observed, cache: ModelDataCacheConfig, targets: Sequence[Node]) -> int:
    found = (entry(report(observed, node), cache) for node in targets)
    return sum(one.bytes_done for one in found if one is not None)


def _speed(lacking: Sequence[NodeProgress]) -> int | None:
    rates = [one.bytes_per_second for one in lacking if one.bytes_per_second is not None]
    return sum(rates) if rates else None


def _only_progress(before: DataCacheStatus, status: DataCacheStatus) -> bool:
    """Whether nothing differs but how many bytes there are, and how fast more come."""
    none = {"bytes_done": 0, "bytes_per_second": None, "eta_seconds": None}

    def still(of: DataCacheStatus) -> DataCacheStatus:
        nodes = tuple(one.model_copy(update=none) for one in of.not_ready)
        return of.model_copy(update={**none, "progress_at": None, "not_ready": nodes})

    return still(before) == still(status)


def _worth_writing(cache: ModelDataCacheConfig, status: DataCacheStatus, now: float, draft: Draft) -> bool:
    before = cache.status
    whole = (cache.status.total_bytes or 0) * max(status.target, 1)
    if before.bytes_done == status.bytes_done:
        return False
    if before.progress_at is not None and now - before.progress_at.timestamp() < PROGRESS_SECONDS:
        draft.wake(before.progress_at.timestamp() + PROGRESS_SECONDS)
        return False
    return abs(status.bytes_done - before.bytes_done) >= PROGRESS_SHARE * whole


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
        _drift(observed, cache, changes)
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


def tell(observed: Observed, changes: Changes, draft: Draft) -> None:
    """Write an Event about the endpoint for each transition."""
    for event in events_of(observed.endpoint, changes):
        draft.add(event)


def events_of(endpoint: Endpoint, changes: Changes) -> Iterator[Event]:
    """An Event about an endpoint for each of its transitions."""
    for one in changes.transitions:
        message = f"{one.type} is {one.status}: {one.message}"
        place = (endpoint.kind, endpoint.namespace, endpoint.name, endpoint.uid)
        warning = reason_named(one.reason) in _WARNINGS
        yield Event(*place, warning, one.reason, message, f"{one.type} has changed")


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
