"""Whether a source still has what a cache was made from: it is listed again now and then."""

from __future__ import annotations

from cacheprep.api import ModelDataCacheConfig
from cacheprep.api.conditions import ConditionType, Reason, reason_of
from cacheprep.api.model import seconds
from cacheprep.api.serving import OnDrift
from cacheprep.failures import Reason as FailureReason
from cacheprep.plan.actions import Apply, RecordDrift
from cacheprep.plan.conditions import Changes
from cacheprep.plan.draft import Draft
from cacheprep.plan.fill import fill_jobs
from cacheprep.plan.identity import checksum, spread
from cacheprep.plan.jobs import resolve_job
from cacheprep.plan.observed import Component, JobState, Observed
from cacheprep.plan.possession import verified
from cacheprep.plan.resolve import forget, jobs_of
from cacheprep.plan.settings import Settings


def look(observed: Observed, cache: ModelDataCacheConfig, settings: Settings, draft: Draft) -> None:
    """Have the source of a cache that is listed listed again, when it is time."""
    jobs = jobs_of(observed, cache, Component.DRIFT)
    policy = observed.endpoint.spec.cache_policy.drift
    status = cache.status
    if not policy.enabled or status.resolved_at is None:
        for job in jobs:
            forget(draft, job, "it is not to be looked for drift")
        return
    if any(job.state is JobState.ACTIVE or job.deleting for job in jobs):
        return
    seen = max(filter(None, (status.resolved_at, status.drift_checked_at))).timestamp()
    for job in jobs:
        if job.state is JobState.SUCCEEDED and (job.finished or 0.0) > seen:
            draft.add(RecordDrift(job.namespace, job.name, cache.name, "the source was listed again"))
            return
    interval = seconds(policy.interval)
    # Caches that were made together are not looked at together. A look that failed counts as one.
    ended = max((job.finished or 0.0 for job in jobs), default=0.0)
    at = max(seen, ended) + interval * (0.9 + 0.2 * spread(cache.name))
    if any(finished > max(seen, ended) for finished in _refused(observed, cache)):
        # A node was told so already.
        at = observed.now
    if observed.now < at:
        draft.wake(at)
        for job in jobs:
            if job.state is JobState.SUCCEEDED:
                forget(draft, job, "what it found is noted")
        return
    attempt = max((job.attempt for job in jobs), default=0) + 1
    manifest = resolve_job(observed.endpoint, cache, Component.DRIFT, attempt, settings)
    draft.add(Apply(manifest, f"the source was last listed {observed.now - seen:.0f} s ago"))
    for job in jobs:
        forget(draft, job, "another look takes its place")


def drifted(cache: ModelDataCacheConfig) -> bool:
    """Whether the source had something else when it was looked at last."""
    return cache.status.drifted_key not in (None, cache.status.key)


def say_drift(observed: Observed, cache: ModelDataCacheConfig, changes: Changes) -> None:
    """Set the condition that tells of it."""
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


def listing_wanted(
    observed: Observed, cache: ModelDataCacheConfig, settings: Settings, draft: Draft
) -> str | None:
    """The word for a new listing of the source, which makes another cache; None if none is wanted.

    After drift, if the endpoint says so. And always when no node has the cache and none can get it any more,
    because the source changed between listing and fetching: then nothing is lost.
    """
    if drifted(cache) and observed.endpoint.spec.cache_policy.drift.on_drift is OnDrift.ROLL_OVER:
        return checksum([cache.name, cache.status.drifted_key])
    stale = bool(_refused(observed, cache))
    resolved = cache.status.resolved_at
    if resolved is None or not stale or any(verified(observed, node, cache) for node in observed.nodes):
        return None
    at = resolved.timestamp() + settings.first_retry_s
    if observed.now < at:
        # A source that is never as it was listed is not listed without end.
        draft.wake(at)
        return None
    return checksum([cache.name, cache.status.key])


def _refused(observed: Observed, cache: ModelDataCacheConfig) -> list[float]:
    """When nodes were told by the source that it has not got any more what was listed."""
    return [
        job.finished
        for jobs in fill_jobs(observed, cache).values()
        for job in jobs
        if job.failure is FailureReason.SOURCE_CHANGED and job.finished is not None
    ]
