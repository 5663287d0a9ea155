"""When the Deployment is written, and with which cache; how many pods; what stands beside it."""

from __future__ import annotations

from cacheprep.api import Endpoint, ModelDataCacheConfig, ModelImageCache
from cacheprep.plan import workload
from cacheprep.plan.actions import Apply, Delete, Scale, SetRolling
from cacheprep.plan.draft import Draft, stamp
from cacheprep.plan.gate import Gate
from cacheprep.plan.identity import image_cache_name
from cacheprep.plan.observed import Deployment, Observed
from cacheprep.plan.settings import Settings
from cacheprep.plan.versions import Versions, breaks_first


def serve(observed: Observed, which: Versions, gate: Gate | None, settings: Settings, draft: Draft) -> None:
    """Have the Deployment as it should be.

    Args:
        observed: what is.
        which: caches of the endpoint.
        gate: of the wanted cache, None if weights are not cached.
        settings: of the operator.
        draft: takes the actions.
    """
    endpoint, deployment = observed.endpoint, observed.deployment
    if any(name.endswith(f"/{endpoint.name}") for name in observed.foreign):
        return
    _beside(observed, draft)
    if deployment is not None and (deployment.deleting or not deployment.ours):
        return
    if which.wanted_name is not None and breaks_first(observed, which):
        if deployment is not None and which.wanted is not None and which.wanted.status.key is not None:
            why = "breakBeforeMake: old pods stop before the new cache is fetched"
            draft.add(Delete("Deployment", endpoint.namespace, endpoint.name, why))
        return
    loads = _loads(observed, which, gate)
    if loads is None:
        return
    (cache,) = loads
    _write(observed, cache, settings, draft)


def _loads(
    observed: Observed, which: Versions, gate: Gate | None
) -> tuple[ModelDataCacheConfig | None] | None:
    """The cache that pods are to load now, in a tuple; (None,) is none, and None: no pods are to be made."""
    deployment = observed.deployment
    if which.wanted_name is None:
        loaded = which.active
        if loaded is not None and deployment is not None:
            same = deployment.workload == workload.workload(observed.endpoint, cached=True)
            # Pods need not restart because caching ends; with the next change they are made without it.
            return (loaded,) if same else (None,)
        return (None,)
    if gate is not None and gate.open and which.wanted is not None:
        return (which.wanted,)
    if deployment is None:
        return None
    # The old pods stay while the new cache is filled; other changes of theirs are made.
    return (which.active,) if which.active is not None or not deployment.cache else None


def _write(observed: Observed, cache: ModelDataCacheConfig | None, settings: Settings, draft: Draft) -> None:
    endpoint, deployment = observed.endpoint, observed.deployment
    images = images_of(observed)
    if images is None:
        return
    identity = workload.workload(endpoint, cached=cache is not None)
    name = cache.name if cache is not None else ""
    # What the operator adds changes with its release: that alone is no reason to restart pods.
    key = (cache.status.key or "") if cache is not None else ""
    now = deployment and (deployment.workload, deployment.cache, deployment.cache_key)
    if now != (identity, name, key):
        manifest = stamp(workload.deployment(endpoint, cache, images, settings))
        loading = f"pods load from {name}" if name else "pods fetch the model themselves"
        draft.add(Apply(manifest, f"the gate is open: {loading}" if deployment is None else loading))
    elif deployment is not None:
        _set_rolling(endpoint, deployment, draft)
    if endpoint.spec.autoscaling is not None:
        return
    wanted = 1 if endpoint.spec.replicas is None else endpoint.spec.replicas
    if wanted != (1 if deployment is None else deployment.replicas):
        draft.add(Scale(endpoint.namespace, endpoint.name, wanted, f"replicas: {wanted}"))


def _set_rolling(endpoint: Endpoint, deployment: Deployment, draft: Draft) -> None:
    rolling = workload.rolling(endpoint)
    if deployment.rolling != (str(rolling["maxSurge"]), str(rolling["maxUnavailable"])):
        why = f"rollover: {endpoint.spec.cache_policy.rollover.value}"
        draft.add(SetRolling(endpoint.namespace, endpoint.name, rolling, why))


def images_of(observed: Observed) -> list[ModelImageCache] | None:
    """Image caches that pods are to prefer; None while one is not made yet, for affinity is written once."""
    config = observed.endpoint.spec.model_cache_config.image_cache
    if config is None or not config.enabled:
        return []
    wanted = image_cache_name(workload.images(observed.endpoint)[0])
    found = [cache for cache in observed.image_caches if cache.name == wanted]
    return found or None


def _beside(observed: Observed, draft: Draft) -> None:
    endpoint = observed.endpoint
    for manifest in workload.beside(endpoint):
        name = manifest["metadata"]["name"]
        there = observed.object(manifest["kind"], name)
        applied = there.applied if there is not None else ""
        draft.apply(manifest, applied, f"{manifest['kind']} of the endpoint")
    scaling = endpoint.spec.autoscaling
    scaler = observed.object("HorizontalPodAutoscaler", endpoint.name)
    scaled = scaling is not None and scaling.horizontal_pod_autoscaler is not None
    if scaler is not None and not scaler.deleting and not scaled:
        why = "the endpoint is not to be scaled by it any more"
        draft.add(Delete("HorizontalPodAutoscaler", endpoint.namespace, endpoint.name, why))
