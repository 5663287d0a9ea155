"""One Job lists the source of a cache; what it finds is what every node fetches."""

from __future__ import annotations

from cacheprep.api import ModelDataCacheConfig
from cacheprep.api.names import RETRY
from cacheprep.plan.actions import Apply, Delete, RecordListing
from cacheprep.plan.draft import Draft
from cacheprep.plan.jobs import resolve_job
from cacheprep.plan.observed import Component, Job, JobState, Observed
from cacheprep.plan.retry import due, next_attempt
from cacheprep.plan.settings import Settings


def jobs_of(observed: Observed, cache: ModelDataCacheConfig, component: Component) -> list[Job]:
    """The Jobs of a cache for one purpose, the last attempt last."""
    found = (
        job
        for job in observed.jobs
        if job.component is component and (job.namespace, job.cache) == (cache.namespace, cache.name)
    )
    return sorted(found, key=lambda job: job.attempt)


def resolve(observed: Observed, cache: ModelDataCacheConfig, settings: Settings, draft: Draft) -> None:
    """Have the source of a cache listed, unless it is and the listing is stored."""
    jobs = jobs_of(observed, cache, Component.RESOLVE)
    if cache.status.key is not None and cache.name in observed.stored:
        for job in jobs:
            forget(draft, job, "its listing is stored")
        return
    if any(job.state is JobState.ACTIVE or job.deleting for job in jobs):
        return
    done = next((job for job in jobs if job.state is JobState.SUCCEEDED), None)
    if done is not None:
        draft.add(RecordListing(done.namespace, done.name, cache.name, "the source was listed"))
        return
    again(
        observed,
        cache,
        jobs,
        Component.RESOLVE,
        "no node can fetch before the source is listed",
        settings,
        draft,
    )


def again(
    observed: Observed,
    cache: ModelDataCacheConfig,
    jobs: list[Job],
    component: Component,
    why: str,
    settings: Settings,
    draft: Draft,
) -> None:
    """List the source by a new Job, once the one that failed last was long enough ago."""
    attempt = 1
    if jobs:
        last = jobs[-1]
        retry = observed.endpoint.metadata.annotations.get(RETRY, "")
        if not due(last, observed.now, retry, settings):
            draft.wake(next_attempt(last, settings))
            return
        attempt = last.attempt + 1
        why = f"{why}; attempt {attempt}, the last one ended with {last.failure or 'a defect'}"
    draft.add(Apply(resolve_job(observed.endpoint, cache, component, attempt, settings), why))
    for job in jobs:
        forget(draft, job, "another attempt takes its place")


def forget(draft: Draft, job: Job, why: str) -> None:
    """Delete a Job, once."""
    if not job.deleting:
        draft.add(Delete("Job", job.namespace, job.name, why))
