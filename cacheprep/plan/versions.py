"""Which cache an endpoint wants, which one its pods load, and which of its caches may go.

Make before break: pods run on from the active cache while the wanted one is filled; then the Deployment is
changed, and the old cache goes when no pod is left that loads it. Break before make: the old pods stop and
the old cache goes before the first byte of the wanted one is fetched.
"""

from __future__ import annotations

from typing import NamedTuple

from cacheprep.api import Endpoint, ModelDataCacheConfig
from cacheprep.api.caches import DataCacheSpec
from cacheprep.api.serving import EndpointRef, Mount, Rollover
from cacheprep.plan.identity import cache_name
from cacheprep.plan.observed import Observed


class Versions(NamedTuple):
    """The caches of an endpoint.

    `wanted_name` is what the spec says, None if weights are not cached; `wanted` is that object, None before
    it is made. `active` is what pods of the Deployment load, None if there is no Deployment or it loads none.
    """

    wanted_name: str | None
    wanted: ModelDataCacheConfig | None
    active: ModelDataCacheConfig | None

    @property
    def rolling_over(self) -> bool:
        """Whether the wanted cache is to take the place of another one."""
        return self.active is not None and self.wanted_name not in (None, self.active.name)


def caches_weights(endpoint: Endpoint) -> bool:
    """Whether the endpoint is to have its weights on nodes."""
    weights = endpoint.spec.model_cache_config.weights_cache
    return weights is not None and weights.enabled and not endpoint.deleting


def wanted_spec(endpoint: Endpoint) -> DataCacheSpec | None:
    """The cache that an endpoint's spec asks for, None if it asks for none."""
    weights = endpoint.spec.model_cache_config.weights_cache
    if weights is None or not caches_weights(endpoint):
        return None
    policy = endpoint.spec.cache_policy
    return DataCacheSpec(
        endpoint_ref=EndpointRef(kind=endpoint.kind, name=endpoint.name, uid=endpoint.uid),
        source=endpoint.source,
        host_path=weights.host_path,
        mount=policy.mount,
        claim_name=policy.claim_name if policy.mount is Mount.PVC else None,
    )


def versions(observed: Observed) -> Versions:
    """The caches of the endpoint, as they are."""
    spec = wanted_spec(observed.endpoint)
    name = None if spec is None else cache_name(observed.endpoint, spec)
    deployment = observed.deployment
    loaded = deployment.cache if deployment is not None and deployment.ours else ""
    caches = observed.own_caches
    return Versions(name, caches.get(name or ""), caches.get(loaded))


def in_use(observed: Observed, cache: ModelDataCacheConfig) -> bool:
    """Whether a pod of the endpoint loads a cache, or may be made that does."""
    deployment = observed.deployment
    if deployment is not None and deployment.ours:
        if deployment.cache == cache.name and not deployment.deleting:
            return True
        if not deployment.rolled_out and not deployment.deleting:
            # Pods of the template before may come back until the rollout is complete.
            return True
    key = cache.status.key
    return key is not None and any(pod.cache_key == key for pod in observed.own_pods)


def releasing(observed: Observed, which: Versions) -> list[ModelDataCacheConfig]:
    """Caches of the endpoint that are not wanted on any node where no pod uses them, by name.

    Where weights are not to be cached any more, pods run on and keep what they use; else it stays everywhere
    until the rollover to another cache is complete.
    """
    caches = (observed.own_caches[name] for name in sorted(observed.own_caches))
    disabled = which.wanted_name is None
    return [
        cache
        for cache in caches
        if cache.name != which.wanted_name and (disabled or not in_use(observed, cache))
    ]


def breaks_first(observed: Observed, which: Versions) -> bool:
    """Whether the wanted cache has to wait until the others are gone: `rollover: breakBeforeMake`."""
    if observed.endpoint.spec.cache_policy.rollover is not Rollover.BREAK_BEFORE_MAKE:
        return False
    return which.wanted_name is not None and bool(observed.own_caches.keys() - {which.wanted_name})
