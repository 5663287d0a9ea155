"""What is said of a cache that is wanted: its status, and conditions."""

from __future__ import annotations

from collections.abc import Sequence

from cacheprep.api import ModelDataCacheConfig
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
from cacheprep.plan.conditions import Changes
from cacheprep.plan.draft import Draft
from cacheprep.plan.drift import say_drift
from cacheprep.plan.observed import Component, JobState, Node, Observed
from cacheprep.plan.possession import entry, report
from cacheprep.plan.progress import eta
from cacheprep.plan.resolve import jobs_of
from cacheprep.plan.status import write_status

_WAITS = frozenset({Reason.FILLING, Reason.WAITING_FOR_NODES})
_UNKNOWN = frozenset({Reason.AGENT_MISSING, Reason.AGENT_SILENT})
"""Of nodes that may have it or not."""


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
        say_drift(observed, cache, changes)
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
