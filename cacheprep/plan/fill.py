"""One Job for each target node and cache fetches it there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from cacheprep.api import ModelDataCacheConfig
from cacheprep.api.caches import NodeProgress, RootStatus
from cacheprep.api.conditions import Reason, reason_of
from cacheprep.api.model import MOST_MESSAGE, moment, written
from cacheprep.api.names import COMPONENT, RETRY, SOURCE
from cacheprep.plan.actions import Apply
from cacheprep.plan.draft import Draft
from cacheprep.plan.identity import origin, spread
from cacheprep.plan.jobs import fill_job
from cacheprep.plan.observed import Component, Job, JobState, Node, Observed
from cacheprep.plan.possession import entry, report, silent, verified
from cacheprep.plan.resolve import forget
from cacheprep.plan.retry import due, next_attempt
from cacheprep.plan.settings import Settings
from cacheprep.store.layout import State

_YEAR = 365 * 24 * 3600


def fill_jobs(observed: Observed, cache: ModelDataCacheConfig) -> Mapping[str, Sequence[Job]]:
    """Jobs that fill nodes with the key of a cache, by node, the last attempt last.

    Those of other caches of the namespace count if they have the same key: it is one directory on a node.
    """
    found: defaultdict[str, list[Job]] = defaultdict(list)
    for job in observed.jobs:
        if job.component is Component.FILL and (job.namespace, job.key) == (
            cache.namespace,
            cache.status.key,
        ):
            found[job.node].append(job)
    return {node: sorted(jobs, key=lambda job: job.attempt) for node, jobs in found.items()}


def fill(
    observed: Observed,
    cache: ModelDataCacheConfig,
    targets: Iterable[Node],
    settings: Settings,
    draft: Draft,
) -> None:
    """Have all target nodes fetch a cache that is listed, as many at once as its source is to bear."""
    jobs = fill_jobs(observed, cache)
    targets = tuple(targets)
    for name in sorted(jobs.keys() - {node.name for node in targets}):
        _give_back(observed, name, jobs[name], draft)
    begun = _begun(draft)
    left = _slots(observed, cache, begun, settings)
    waiting = []
    for node in targets:
        of_node = jobs.get(node.name, ())
        if verified(observed, node, cache):
            for job in of_node:
                if job.state is not JobState.ACTIVE:
                    forget(draft, job, f"node {node.name} has the cache, verified")
        elif _may_start(observed, cache, node, of_node, settings, draft):
            waiting.append(node)
    # Always in the same order, and another one for each cache: no node is first everywhere.
    waiting.sort(key=lambda node: spread(node.name, cache.name))
    for node in waiting[: max(left, 0)]:
        of_node = jobs.get(node.name, ())
        attempt = 1
        why = f"node {node.name} is a target and has not got the cache"
        if of_node:
            attempt = of_node[-1].attempt + 1
            why += f"; attempt {attempt}, the last one ended with {of_node[-1].failure or 'a defect'}"
        manifest = fill_job(observed.endpoint, cache, node, attempt, settings)
        if manifest["metadata"]["name"] in begun:
            # Another cache of the endpoint has the same key, and its Job was just made.
            continue
        draft.add(Apply(manifest, why))
        # After the new one is there: it knows how many came before.
        for job in of_node:
            forget(draft, job, "another attempt takes its place")


def _give_back(observed: Observed, node: str, jobs: Sequence[Job], draft: Draft) -> None:
    """A node that is no target keeps no other from reading the source; what it has stays for the next try."""
    there = node in observed.node_named
    for job in jobs:
        if not there:
            forget(draft, job, f"node {node} is gone")
        elif job.state is JobState.ACTIVE:
            forget(draft, job, f"node {node} is no target any more")


def _may_start(
    observed: Observed,
    cache: ModelDataCacheConfig,
    node: Node,
    jobs: Sequence[Job],
    settings: Settings,
    draft: Draft,
) -> bool:
    """Whether a Job may start on a node now, as far as this node is concerned."""
    said = report(observed, node)
    if said is None or any(job.state is JobState.ACTIVE or job.deleting for job in jobs):
        # Without its agent nobody would know that a node has it.
        return False
    if _obstacle(observed, cache, node) is not None:
        return False
    if not jobs:
        return True
    last = jobs[-1]
    if last.state is JobState.SUCCEEDED:
        looked = said.status.observed_at
        if looked is not None and looked.timestamp() > (last.finished or 0.0):
            forget(draft, last, f"node {node.name} has lost the cache since")
        return False
    retry = observed.endpoint.metadata.annotations.get(RETRY, "")
    if due(last, observed.now, retry, settings):
        return True
    draft.wake(next_attempt(last, settings))
    return False


def _obstacle(observed: Observed, cache: ModelDataCacheConfig, node: Node) -> tuple[Reason, str] | None:
    """Why a Job on this node would fail for sure; None if nothing is known to be in its way."""
    root = _root(observed, cache, node)
    if root is None:
        return None
    if not root.usable:
        known = {reason.value: reason for reason in Reason}
        reason = known.get(root.reason or "", Reason.INVALID_REQUEST)
        return reason, f"root {root.path}: {root.message}"
    found = entry(report(observed, node), cache)
    # What is being fetched was allocated before its first byte.
    needed = 0 if found is not None and found.state is not State.ABSENT else cache.status.total_bytes or 0
    if needed > root.available_bytes:
        said = f"root {root.path}: needs {needed} bytes, {root.available_bytes} are available"
        return Reason.INSUFFICIENT_CAPACITY, said
    return None


def _root(observed: Observed, cache: ModelDataCacheConfig, node: Node) -> RootStatus | None:
    said = report(observed, node)
    roots = said.status.roots if said is not None else ()
    return next((root for root in roots if root.path == cache.spec.host_path), None)


def _begun(draft: Draft) -> Mapping[str, str]:
    """Jobs of this plan that fill: their names, and the hash of the source of each."""
    jobs = (one for one in draft.actions if isinstance(one, Apply) and one.kind == "Job")
    labels = ((job.name, job.manifest["metadata"]["labels"]) for job in jobs)
    return {name: said[SOURCE] for name, said in labels if said[COMPONENT] == Component.FILL}


def _slots(
    observed: Observed, cache: ModelDataCacheConfig, begun: Mapping[str, str], settings: Settings
) -> int:
    """How many more nodes may read the source of this cache now."""
    source = origin(cache.spec.source, cache.namespace)
    busy = sum(
        job.component is Component.FILL and job.state is JobState.ACTIVE and job.source == source
        for job in observed.jobs
    )
    busy += sum(of == source for of in begun.values())
    most = observed.endpoint.spec.cache_policy.downloads_at_once or settings.downloads_at_once
    return min(most, settings.downloads_at_once) - busy


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
    obstacle = _obstacle(observed, cache, node)
    again: datetime | None = None
    if silent(observed, node):
        reason, message = Reason.AGENT_SILENT, _silence(observed, node)
    elif said is None:
        reason, message = Reason.AGENT_MISSING, "no agent has said anything since the node started"
    elif last is not None and last.state is JobState.ACTIVE and last.waiting:
        reason, message = Reason.JOB_PENDING, f"Job {last.name}: {last.waiting}"
    elif last is not None and last.state is JobState.ACTIVE:
        reason, message = Reason.FILLING, f"Job {last.name}"
    elif obstacle is not None:
        reason, message = obstacle
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
