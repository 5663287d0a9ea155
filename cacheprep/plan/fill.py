"""One Job for each target node and cache fetches it there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

from cacheprep.api import ModelDataCacheConfig
from cacheprep.api.caches import RootStatus
from cacheprep.api.conditions import Reason
from cacheprep.api.names import COMPONENT, RETRY, SOURCE
from cacheprep.plan.actions import Apply
from cacheprep.plan.draft import Draft
from cacheprep.plan.identity import origin, spread
from cacheprep.plan.jobs import fill_job
from cacheprep.plan.observed import Component, Job, JobState, Node, Observed
from cacheprep.plan.possession import entry, report, verified
from cacheprep.plan.resolve import forget
from cacheprep.plan.retry import due, next_attempt
from cacheprep.plan.settings import Settings
from cacheprep.store.layout import State


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
    attempts = ((node, jobs[node.name][-1].attempt + 1 if node.name in jobs else 1) for node in waiting)
    made = ((node, fill_job(observed.endpoint, cache, node, attempt, settings)) for node, attempt in attempts)
    # Another cache of the endpoint may have the same key, and its Job was just made.
    wanted = ((node, job) for node, job in made if job["metadata"]["name"] not in begun)
    for node, manifest in islice(wanted, max(left, 0)):
        before = jobs.get(node.name, ())
        why = f"node {node.name} is a target and has not got the cache"
        if before:
            last = before[-1]
            why += f"; attempt {last.attempt + 1}, the last one ended with {last.failure or 'a defect'}"
        draft.add(Apply(manifest, why))
        # After the new one is there: it knows how many came before.
        for job in before:
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
    if obstacle(observed, cache, node) is not None:
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


def obstacle(observed: Observed, cache: ModelDataCacheConfig, node: Node) -> tuple[Reason, str] | None:
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
