"""EndpointSlices of the Service `<name>-warm`: which pods run on prepared nodes. The router joins them.

They never decide who serves: that is the ordinary Service's. A pod is `ready` and `serving` here if it is
Ready and its node has the weights that it loads, verified; else it is neither. Envoy Gateway takes `serving`
for healthy whatever `ready` says, so the two never differ.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Any

from cacheprep.api import ModelDataCacheConfig
from cacheprep.api.model import JsonObject
from cacheprep.api.names import MANAGER, WARM_SUFFIX
from cacheprep.plan import workload
from cacheprep.plan.actions import Apply, Delete
from cacheprep.plan.draft import Draft, stamp
from cacheprep.plan.observed import Observed, Pod, Slice, SliceEndpoint
from cacheprep.plan.possession import verified

MOST_ENDPOINTS = 100
"""Of a slice; the API takes 1000. As kube-controller-manager's --max-endpoints-per-slice."""
_ZONE = "topology.kubernetes.io/zone"


def publish(observed: Observed, caches: Iterable[ModelDataCacheConfig], draft: Draft) -> None:
    """Have the slices say which pods of the endpoint are warm, as far as they load one of `caches`."""
    endpoint = observed.endpoint
    manifest = workload.warm_service(endpoint)
    name = endpoint.name + WARM_SUFFIX
    service = observed.object("Service", name)
    applied = service.applied if service is not None else ""
    draft.apply(manifest, applied, "tells the router which pods are warm")
    if service is None or not service.uid or service.deleting:
        return
    caches = tuple(caches)
    for family in ("IPv4", "IPv6"):
        wanted = [one for pod in _pods(observed) for one in _endpoints(observed, pod, caches, family)]
        _write(observed, family, wanted, service.uid, draft)


def withdraw(observed: Observed, draft: Draft) -> None:
    """Say nothing any more."""
    endpoint = observed.endpoint
    why = "weights are not cached any more"
    for one in observed.slices:
        draft.add(Delete("EndpointSlice", endpoint.namespace, one.name, why))
    service = observed.object("Service", endpoint.name + WARM_SUFFIX)
    if service is not None and not service.deleting:
        draft.add(Delete("Service", endpoint.namespace, service.name, why))


def _pods(observed: Observed) -> list[Pod]:
    return sorted((pod for pod in observed.own_pods if pod.ips and pod.node), key=lambda pod: pod.uid)


def _endpoints(
    observed: Observed, pod: Pod, caches: Sequence[ModelDataCacheConfig], family: str
) -> list[SliceEndpoint]:
    node = observed.node_named.get(pod.node)
    loads = [cache for cache in caches if pod.cache_key and cache.status.key == pod.cache_key]
    warm = node is not None and any(verified(observed, node, cache) for cache in loads)
    return [
        SliceEndpoint(
            address=ip,
            pod=pod.name,
            pod_uid=pod.uid,
            node=pod.node,
            zone=node.labels.get(_ZONE, "") if node is not None else "",
            ready=pod.ready and warm and not pod.terminating,
            terminating=pod.terminating,
        )
        for ip in pod.ips
        if f"IPv{ipaddress.ip_address(ip).version}" == family
    ]


def _write(
    observed: Observed, family: str, wanted: Sequence[SliceEndpoint], service_uid: str, draft: Draft
) -> None:
    there = sorted((one for one in observed.slices if one.family == family), key=lambda one: one.name)
    port = observed.endpoint.spec.engine.port
    before = {one.name: one for one in there}
    made = {one.name: one for one in _assign(observed.endpoint.name, family, port, there, wanted)}
    for name, one in made.items():
        if before.get(name) != one:
            ready = sum(endpoint.ready for endpoint in one.endpoints)
            why = f"{ready} of {len(one.endpoints)} pods of the slice are warm"
            draft.add(Apply(stamp(_manifest(observed, one, service_uid)), why))
    for name in before.keys() - made.keys():
        draft.add(Delete("EndpointSlice", observed.endpoint.namespace, name, "no pod is left in it"))


def _assign(
    endpoint: str, family: str, port: int, there: Sequence[Slice], wanted: Sequence[SliceEndpoint]
) -> list[Slice]:
    """Endpoints to slices: each stays where it is, new ones take what is free, so that little changes."""
    left = {(one.pod_uid, one.address): one for one in wanted}
    taken: dict[str, list[SliceEndpoint]] = {}
    for old in there:
        kept = [left.pop(place, None) for place in ((one.pod_uid, one.address) for one in old.endpoints)]
        taken[old.name] = [one for one in kept if one is not None]
    rest = list(left.values())
    number = 0
    while rest:
        name = f"{endpoint}{WARM_SUFFIX}-{family.lower()}-{number}"
        number += 1
        of_slice = taken.setdefault(name, [])
        free = max(MOST_ENDPOINTS - len(of_slice), 0)
        of_slice += rest[:free]
        del rest[:free]
    ordered = sorted(taken.items())
    return [
        Slice(name, family, port, tuple(sorted(endpoints, key=lambda one: (one.pod_uid, one.address))))
        for name, endpoints in ordered
        if endpoints
    ]


def _manifest(observed: Observed, one: Slice, service_uid: str) -> JsonObject:
    endpoint = observed.endpoint
    service = endpoint.name + WARM_SUFFIX
    owner: dict[str, Any] = {"apiVersion": "v1", "kind": "Service", "name": service, "uid": service_uid}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": one.name,
            "namespace": endpoint.namespace,
            "labels": {
                **workload.selector(endpoint),
                "kubernetes.io/service-name": service,
                "endpointslice.kubernetes.io/managed-by": MANAGER,
            },
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": False}],
        },
        "addressType": one.family,
        "ports": [{"name": workload.PORT, "port": one.port, "protocol": "TCP"}],
        "endpoints": [_endpoint(observed, each) for each in one.endpoints],
    }


def _endpoint(observed: Observed, one: SliceEndpoint) -> JsonObject:
    written: JsonObject = {
        "addresses": [one.address],
        # Nil means true: all three are always said.
        "conditions": {"ready": one.ready, "serving": one.ready, "terminating": one.terminating},
        "nodeName": one.node,
        "targetRef": {
            "kind": "Pod",
            "name": one.pod,
            "namespace": observed.endpoint.namespace,
            "uid": one.pod_uid,
        },
    }
    return {**written, "zone": one.zone} if one.zone else written
