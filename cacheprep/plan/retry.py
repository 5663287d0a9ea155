"""When what has failed is tried again."""

from __future__ import annotations

from cacheprep.plan.identity import spread
from cacheprep.plan.observed import Job
from cacheprep.plan.settings import Settings

_SPREAD = 0.2
"""Waits differ by this share to both sides, so that nodes that failed together do not come back together."""


def next_attempt(job: Job, settings: Settings) -> float:
    """When the next try after a failed Job is due, s since the epoch.

    It waits from `first_retry_s`, twice as long each time, to `longest_retry_s`. What cannot succeed without
    a change (`Reason.retriable`) waits longest at once: the change, as of a Secret, may not be seen here.
    """
    wait = settings.longest_retry_s
    if job.failure is None or job.failure.retriable:
        wait = min(settings.first_retry_s * 2 ** min(job.attempt - 1, 30), wait)
    around = 1 - _SPREAD + 2 * _SPREAD * spread(job.node, job.cache)
    return (job.finished or 0.0) + wait * around


def due(job: Job, now: float, retry: str, settings: Settings) -> bool:
    """Whether it is time; at once if the endpoint's annotation `RETRY` has changed since."""
    return job.retry != retry or now >= next_attempt(job, settings)
