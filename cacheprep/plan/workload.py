"""What serves, as objects of Kubernetes: Deployment, Service, settings of the router, an autoscaler.

A pod finds its model in one place, on warm nodes and on cold ones: the init container `ensure` has it ready
before the engine starts, at once or by fetching it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import yaml

from cacheprep.api import Endpoint, ModelDataCacheConfig, ModelImageCache
from cacheprep.api.names import (
    CACHE,
    CACHE_KEY,
    ENDPOINT,
    ENDPOINT_KIND,
    IMAGE_READY,
    READY,
    ROUTING_SUFFIX,
    SETTINGS_KEY,
    WARM_SUFFIX,
    WEIGHTS_READY,
    WORKLOAD,
)
from cacheprep.api.serving import Rollover
from cacheprep.api.sources import arguments
from cacheprep.plan.identity import checksum, image_cache_name
from cacheprep.plan.jobs import (
    LISTING_MOUNTED_AT,
    STORE_MOUNTED_AT,
    UNPRIVILEGED,
    confined,
    environment,
    owned_by,
    source_mounts,
    source_volumes,
    store_mounts,
    store_user,
    store_volumes,
)
from cacheprep.plan.settings import Settings

JsonObject = dict[str, Any]

ENSURE = "warmroute-ensure"
LINK = "model"
"""In a store that lives as long as its pod: what stands for the model's directory."""
PORT = "http"
WEIGHTS_WEIGHT, IMAGE_WEIGHT = 100, 50
"""Of preferred node affinity: weights take longer to come than images."""


def workload(endpoint: Endpoint, cached: bool) -> str:
    """Checksum of what an endpoint says of its pods. Where weights are cached, where they come from is not
    part of it: that is the cache's."""
    said: list[Any] = [endpoint.spec.engine.said()]
    if not cached:
        said.append(endpoint.source.said())
    return checksum(said, 16)


def deployment(
    endpoint: Endpoint,
    cache: ModelDataCacheConfig | None,
    images: Sequence[ModelImageCache],
    settings: Settings,
) -> JsonObject:
    """The Deployment, whose pods load the model from `cache`, or without one from where they fetch it to.

    It never says `replicas`: those are set by the subresource `scale`, or by an autoscaler.
    """
    engine = endpoint.spec.engine
    template: JsonObject = {
        "metadata": {
            "labels": {**engine.template.metadata.labels, **selector(endpoint)},
            "annotations": {**engine.template.metadata.annotations, **_loads(cache)},
        },
        "spec": _pod_spec(endpoint, cache, images, settings),
    }
    return _object(
        endpoint,
        ("apps/v1", "Deployment", endpoint.name),
        {
            "selector": {"matchLabels": selector(endpoint)},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling(endpoint)},
            "template": template,
        },
        {WORKLOAD: workload(endpoint, cache is not None), **_loads(cache)},
    )


def rolling(endpoint: Endpoint) -> JsonObject:
    """How the Deployment rolls out: GPUs that hold one version only have no room for a pod beside the old."""
    if endpoint.spec.cache_policy.rollover is Rollover.BREAK_BEFORE_MAKE:
        return {"maxSurge": 0, "maxUnavailable": "25%"}
    return {"maxSurge": "25%", "maxUnavailable": 0}


def beside(endpoint: Endpoint) -> list[JsonObject]:
    """What stands beside the Deployment: Service, settings of the router, autoscaler."""
    ports = [{"name": PORT, "port": endpoint.spec.engine.port, "targetPort": endpoint.spec.engine.port}]
    service = {"selector": selector(endpoint), "ports": ports}
    made = [_object(endpoint, ("v1", "Service", endpoint.name), service), routing(endpoint)]
    scaling = endpoint.spec.autoscaling
    if scaling is not None and scaling.horizontal_pod_autoscaler is not None:
        wanted = scaling.horizontal_pod_autoscaler
        spec: JsonObject = {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": endpoint.name},
            "minReplicas": wanted.min_replicas,
            "maxReplicas": wanted.max_replicas,
        }
        if wanted.metrics:
            spec["metrics"] = list(wanted.metrics)
        made.append(_object(endpoint, ("autoscaling/v2", "HorizontalPodAutoscaler", endpoint.name), spec))
    return made


def warm_service(endpoint: Endpoint) -> JsonObject:
    """The headless Service without selector whose slices say which pods run on prepared nodes."""
    spec = {"clusterIP": "None", "ports": [{"name": PORT, "port": endpoint.spec.engine.port}]}
    return _object(endpoint, ("v1", "Service", endpoint.name + WARM_SUFFIX), spec)


def routing(endpoint: Endpoint) -> JsonObject:
    """The ConfigMap that the router takes settings from while it runs (docs/kubernetes.md)."""
    said = endpoint.spec.routing.write()
    made = _object(endpoint, ("v1", "ConfigMap", endpoint.name + ROUTING_SUFFIX))
    made["data"] = {SETTINGS_KEY: yaml.safe_dump(said, sort_keys=True) if said else ""}
    return made


def selector(endpoint: Endpoint) -> JsonObject:
    """Labels by which pods of an endpoint are known."""
    return {ENDPOINT: endpoint.name, ENDPOINT_KIND: endpoint.KIND}


def images(endpoint: Endpoint) -> tuple[str, ...]:
    """The images of an endpoint's pods, that of the engine first."""
    spec = endpoint.spec.engine.template.spec
    engine = engine_container(endpoint, spec)
    others = [*(spec.get("initContainers") or ()), *spec["containers"]]
    return tuple(dict.fromkeys([engine["image"], *(container["image"] for container in others)]))


def engine_container(endpoint: Endpoint, spec: Mapping[str, Any]) -> JsonObject:
    """The container of a PodSpec that reads the model."""
    containers: list[JsonObject] = spec["containers"]
    wanted = endpoint.spec.engine.container
    return next((one for one in containers if one["name"] == wanted), containers[0])


def _loads(cache: ModelDataCacheConfig | None) -> JsonObject:
    return {} if cache is None else {CACHE: cache.name, CACHE_KEY: cache.status.key}


def _object(
    endpoint: Endpoint,
    named: tuple[str, str, str],
    spec: JsonObject | None = None,
    annotations: JsonObject | None = None,
) -> JsonObject:
    api_version, kind, name = named
    made: JsonObject = {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": endpoint.namespace,
            "labels": selector(endpoint),
            "annotations": annotations or {},
            "ownerReferences": [owned_by(endpoint)],
        },
    }
    return made if spec is None else {**made, "spec": spec}


def _pod_spec(
    endpoint: Endpoint,
    cache: ModelDataCacheConfig | None,
    images: Sequence[ModelImageCache],
    settings: Settings,
) -> JsonObject:
    spec = deepcopy(endpoint.spec.engine.template.spec)
    engine = engine_container(endpoint, spec)
    said = arguments(endpoint.source if cache is None else cache.spec.source)
    args = ["ensure", f"--to={STORE_MOUNTED_AT}", "--allow-shared-disk"]
    mounts = source_mounts(said)
    volumes = source_volumes(said)
    model: JsonObject = {
        "name": "warmroute-cache",
        "mountPath": endpoint.spec.engine.model_path,
        "readOnly": True,
    }
    if cache is None:
        args += [said.url, f"--link={STORE_MOUNTED_AT}/{LINK}"]
        mounts.append({"name": "warmroute-cache", "mountPath": STORE_MOUNTED_AT})
        volumes.append({"name": "warmroute-cache", "emptyDir": {}})
        model["subPath"] = LINK
    else:
        args += [f"--key={cache.status.key}", f"--listing={LISTING_MOUNTED_AT}"]
        mounts += store_mounts()
        volumes += store_volumes(cache)
        model["subPath"] = f"caches/{cache.status.key}/model"
    engine["volumeMounts"] = [*(engine.get("volumeMounts") or ()), model]
    ensure = {
        "name": ENSURE,
        "image": settings.image,
        "args": [*args, *said.options, "--quiet"],
        **environment(said),
        "volumeMounts": mounts,
        "securityContext": confined(UNPRIVILEGED if cache is None else store_user(cache.spec.mount)),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    spec["initContainers"] = [ensure, *(spec.get("initContainers") or ())]
    spec["volumes"] = [*(spec.get("volumes") or ()), *volumes]
    preferred = list(_preferences(endpoint, cache, images))
    if preferred:
        affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
        key = "preferredDuringSchedulingIgnoredDuringExecution"
        affinity[key] = [*(affinity.get(key) or ()), *preferred]
    return spec


def _preferences(
    endpoint: Endpoint, cache: ModelDataCacheConfig | None, caches: Sequence[ModelImageCache]
) -> list[JsonObject]:
    """Preferred, never required: on a node that is not prepared pods start as well, later."""
    made = []
    if cache is not None:
        made.append(_preference(WEIGHTS_READY + cache.uid, WEIGHTS_WEIGHT))
    engine = image_cache_name(images(endpoint)[0])
    made += [_preference(IMAGE_READY + one.uid, IMAGE_WEIGHT) for one in caches if one.name == engine]
    return made


def _preference(label: str, weight: int) -> JsonObject:
    expression = {"key": label, "operator": "In", "values": [READY]}
    return {"weight": weight, "preference": {"matchExpressions": [expression]}}
