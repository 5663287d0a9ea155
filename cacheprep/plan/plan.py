"""The plan for one endpoint: which rule comes when. Pure, and complete: what is not here is not done."""

from __future__ import annotations

from typing import NamedTuple

from cacheprep.api.caches import ModelDataCacheConfig
from cacheprep.api.conditions import Reason
from cacheprep.api.model import JsonObject, seconds
from cacheprep.api.names import API_VERSION, ENDPOINT, ENDPOINT_KIND, FINALIZER
from cacheprep.plan.actions import Action, Apply, SetFinalizer
from cacheprep.plan.cache_status import say_cache
from cacheprep.plan.cleanup import clean_up
from cacheprep.plan.draft import Draft
from cacheprep.plan.drift import listing_wanted, look
from cacheprep.plan.endpoint_status import say_endpoint
from cacheprep.plan.fill import fill
from cacheprep.plan.gate import Gate, gate
from cacheprep.plan.images import keep_images, target_nodes
from cacheprep.plan.jobs import owned_by
from cacheprep.plan.labels import label
from cacheprep.plan.observed import Node, Observed
from cacheprep.plan.possession import silent_at, verified
from cacheprep.plan.progress import progress
from cacheprep.plan.release import release
from cacheprep.plan.resolve import resolve
from cacheprep.plan.serve import serve
from cacheprep.plan.settings import Settings
from cacheprep.plan.versions import Versions, breaks_first, releasing, versions, wanted_spec
from cacheprep.plan.warm import publish, withdraw


class Plan(NamedTuple):
    """Actions in their order. `wake_at` is when to plan again though nothing has changed, s since the epoch;
    None: not before something does."""

    actions: tuple[Action, ...]
    wake_at: float | None


def plan(observed: Observed, settings: Settings) -> Plan:
    """What is to be done for an endpoint. Empty if all is as it should be."""
    draft = Draft(observed.now)
    if observed.endpoint.deleting:
        clean_up(observed, settings, draft)
    else:
        _keep(observed, settings, draft)
    return Plan(tuple(draft.actions), draft.wake_at)


def _keep(observed: Observed, settings: Settings, draft: Draft) -> None:
    endpoint = observed.endpoint
    if FINALIZER not in endpoint.metadata.finalizers:
        why = "what is put on nodes for it has to be removed when it is deleted"
        draft.add(SetFinalizer(endpoint.kind, endpoint.namespace, endpoint.name, True, why))
    which = versions(observed)
    nodes = target_nodes(observed)
    problem = _problem(observed, settings)
    if problem is not None:
        say_endpoint(observed, which, None, nodes, None, problem, draft)
        return
    keep_images(observed, settings, draft)
    let_go = releasing(observed, which)
    for cache in let_go:
        release(observed, cache, draft)
    listing = _weights(observed, which, nodes, let_go, settings, draft)
    opening = _gate(observed, which, nodes, draft)
    serve(observed, which, opening, settings, draft)
    if which.wanted_name is None:
        withdraw(observed, draft)
    else:
        publish(observed, [cache for cache in observed.own_caches.values() if cache not in let_go], draft)
    say_endpoint(observed, which, opening, nodes, listing, None, draft)


def _problem(observed: Observed, settings: Settings) -> tuple[Reason, str] | None:
    wanted = wanted_spec(observed.endpoint)
    if wanted is not None and wanted.host_path not in settings.roots:
        said = f"hostPath {wanted.host_path}: the operator allows {', '.join(settings.roots) or 'none'}"
        return Reason.HOST_PATH_NOT_ALLOWED, said
    return None


def _weights(
    observed: Observed,
    which: Versions,
    nodes: tuple[Node, ...],
    let_go: list[ModelDataCacheConfig],
    settings: Settings,
    draft: Draft,
) -> str | None:
    """Have the caches of the endpoint on its target nodes; the word for a new listing if one is wanted."""
    if which.wanted_name is None:
        return None
    if which.wanted is None:
        draft.add(Apply(_cache(observed, which.wanted_name), "the weights are to be on the target nodes"))
    for node in nodes:
        # That an agent does not speak any more, nothing tells but time.
        if (at := silent_at(observed, node)) is not None:
            draft.wake(at)
    waits = breaks_first(observed, which)
    listing = None
    for name in sorted(observed.own_caches):
        cache = observed.own_caches[name]
        if cache in let_go:
            continue
        resolve(observed, cache, settings, draft)
        label(observed, cache, True, draft)
        if cache.status.key is None:
            say_cache(observed, cache, nodes, progress(observed, cache, nodes, settings), draft)
            continue
        # The active cache is kept up while another one is on its way: pods may still be put on any node.
        if not (waits and cache.name == which.wanted_name) and cache.name in observed.stored:
            fill(observed, cache, nodes, settings, draft)
        if cache.name == which.wanted_name:
            look(observed, cache, settings, draft)
            listing = listing_wanted(observed, cache, settings, draft)
        say_cache(observed, cache, nodes, progress(observed, cache, nodes, settings), draft)
    return listing


def _gate(observed: Observed, which: Versions, nodes: tuple[Node, ...], draft: Draft) -> Gate | None:
    if which.wanted_name is None:
        return None
    if which.wanted is None:
        return Gate(False, Reason.RESOLVING, "the cache is not made yet")
    cache, deployment = which.wanted, observed.deployment
    ready = sum(verified(observed, node, cache) for node in nodes)
    policy = observed.endpoint.spec.cache_policy
    loads = deployment is not None and deployment.ours and deployment.cache == cache.name
    known = observed.endpoint.status.active_cache == cache.name
    same = deployment is None or deployment.cache_key in ("", cache.status.key)
    made = gate(policy, cache, len(nodes), ready, observed.now, was_open=(loads or known) and same)
    if not made.open and cache.status.resolved_at is not None:
        draft.wake(cache.status.resolved_at.timestamp() + seconds(policy.gate_timeout))
    return made


def _cache(observed: Observed, name: str) -> JsonObject:
    endpoint = observed.endpoint
    spec = wanted_spec(endpoint)
    assert spec is not None  # noqa: S101 - there is a name only if there is a spec
    return {
        "apiVersion": API_VERSION,
        "kind": ModelDataCacheConfig.KIND,
        "metadata": {
            "name": name,
            "namespace": endpoint.namespace,
            "labels": {ENDPOINT: endpoint.name, ENDPOINT_KIND: endpoint.KIND},
            "ownerReferences": [owned_by(endpoint)],
        },
        "spec": spec.write(),
    }
