"""How far the target nodes of a cache are that have not got it, and why not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime

from cacheprep.api import ModelDataCacheConfig
from cacheprep.api.caches import NodeProgress
from cacheprep.api.conditions import Reason, reason_of
from cacheprep.api.model import MOST_MESSAGE, moment, written
from cacheprep.plan.fill import fill_jobs, obstacle
from cacheprep.plan.observed import Job, JobState, Node, Observed
from cacheprep.plan.possession import entry, report, silent, verified
from cacheprep.plan.retry import next_attempt
from cacheprep.plan.settings import Settings
from cacheprep.store.layout import State

_YEAR = 365 * 24 * 3600


def progress(
    observed: Observed, cache: ModelDataCacheConfig, targets: Iterable[Node], settings: Settings
) -> list[NodeProgress]:
    """How far the target nodes are that have not got the cache, those that failed first, then by name."""
    jobs = fill_jobs(observed, cache)
    lacking = [
        _progress(observed, cache, node, jobs.get(node.name, ()), settings)
        for node in targets
        if not verified(observed, node, cache)
    ]
    waits = {Reason.FILLING.value, Reason.WAITING_FOR_NODES.value, Reason.RESOLVING.value}
    return sorted(lacking, key=lambda one: (one.reason in waits, one.node))


def _progress(
    observed: Observed, cache: ModelDataCacheConfig, node: Node, jobs: Sequence[Job], settings: Settings
) -> NodeProgress:
    said = report(observed, node)
    found = entry(said, cache)
    last = jobs[-1] if jobs else None
    hindrance = obstacle(observed, cache, node)
    again: datetime | None = None
    if silent(observed, node):
        reason, message = Reason.AGENT_SILENT, _silence(observed, node)
    elif said is None:
        reason, message = Reason.AGENT_MISSING, "no agent has said anything since the node started"
    elif last is not None and last.state is JobState.ACTIVE and last.waiting:
        reason, message = Reason.JOB_PENDING, f"Job {last.name}: {last.waiting}"
    elif last is not None and last.state is JobState.ACTIVE:
        reason, message = Reason.FILLING, f"Job {last.name}"
    elif hindrance is not None:
        reason, message = hindrance
    elif last is not None and last.state is JobState.FAILED:
        reason = reason_of(last.failure)
        message = last.message or f"Job {last.name} failed"
        again = moment(next_attempt(last, settings))
    elif last is not None:
        reason, message = Reason.FILLING, "fetched; its agent has not looked since"
    elif cache.status.key is None:
        reason, message = Reason.RESOLVING, "the source is not listed yet"
    else:
        reason, message = Reason.WAITING_FOR_NODES, "others read the source first"
    done = found.bytes_done if found is not None else 0
    rate = found.bytes_per_second if found is not None else None
    return NodeProgress(
        node=node.name,
        state=found.state if found is not None else State.ABSENT,
        reason=reason.value,
        message=message[:MOST_MESSAGE],
        bytes_done=done,
        bytes_per_second=rate,
        eta_seconds=eta((cache.status.total_bytes or 0) - done, rate),
        attempts=last.attempt if last is not None else 0,
        next_attempt=again,
    )


def _silence(observed: Observed, node: Node) -> str:
    said = observed.node_caches[node.name].status.observed_at
    return f"its agent has said nothing since {written(said) if said else 'the node started'}"


def eta(lacking: int, rate: int | None) -> int | None:
    """Seconds until as many bytes have come at this rate, at most a year; None if nothing moves."""
    return min(max(lacking, 0) // rate, _YEAR) if rate else None
