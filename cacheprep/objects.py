"""Objects of Kubernetes as the operator writes them: by server-side apply, under one field manager.

An apply says all that the operator wants of an object: what it said before and does not say any more goes,
and what others have written stays. So an apply may be repeated, and a write that was lost is made up for by
the next one (Kubernetes documentation, "Server-Side Apply").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp

from cacheprep.api import (
    InferenceEndpointConfig,
    JumpStartModel,
    ModelDataCacheConfig,
    ModelImageCache,
    NodeModelCache,
)
from cacheprep.api.model import Resource as Kind
from cacheprep.api.names import FIELD_MANAGER, GROUP, VERSION
from extproc.pool.discovery.kubernetes import ApiError, Cluster, Resource

Json = Mapping[str, Any]

NOT_FOUND, CONFLICT = 404, 409
"""Statuses: the object is not there; it is not in the state that was asked for."""
UNDONE = (ApiError, aiohttp.ClientError, OSError, ValueError)
"""What a request raises that was refused, was not answered in time or at all, or whose answer is no JSON."""

_OWN: tuple[type[Kind], ...] = (
    InferenceEndpointConfig,
    JumpStartModel,
    ModelDataCacheConfig,
    ModelImageCache,
    NodeModelCache,
)

RESOURCES: Mapping[str, Resource] = {
    "ConfigMap": Resource("", "v1", "configmaps"),
    "Event": Resource("", "v1", "events"),
    "Node": Resource("", "v1", "nodes"),
    "PersistentVolumeClaim": Resource("", "v1", "persistentvolumeclaims"),
    "Pod": Resource("", "v1", "pods"),
    "Service": Resource("", "v1", "services"),
    "ServiceAccount": Resource("", "v1", "serviceaccounts"),
    "Deployment": Resource("apps", "v1", "deployments"),
    "DaemonSet": Resource("apps", "v1", "daemonsets"),
    "Job": Resource("batch", "v1", "jobs"),
    "HorizontalPodAutoscaler": Resource("autoscaling", "v2", "horizontalpodautoscalers"),
    "EndpointSlice": Resource("discovery.k8s.io", "v1", "endpointslices"),
    "Lease": Resource("coordination.k8s.io", "v1", "leases"),
    **{kind.KIND: Resource(GROUP, VERSION, kind.PLURAL) for kind in _OWN},
}
"""By the word that `kind` of an object says."""


def path(kind: str, name: str = "", namespace: str = "", subresource: str = "") -> str:
    """Where an object is, or without `name` all of its kind; without `namespace` those of the cluster.

    Raises:
        KeyError: of a kind that is not written or read.
    """
    group, version, plural = RESOURCES[kind]
    root = f"/apis/{group}" if group else "/api"
    where = f"/namespaces/{namespace}" if namespace else ""
    return "/".join(filter(None, (f"{root}/{version}{where}", plural, name, subresource)))


def path_of(item: Json, subresource: str = "") -> str:
    """Where an object is, by its kind and metadata."""
    metadata = item["metadata"]
    return path(item["kind"], metadata["name"], metadata.get("namespace") or "", subresource)


async def apply(cluster: Cluster, item: Json, subresource: str = "") -> Json:
    """Make an object so, or its `status`; what the API server made of it.

    With `metadata.uid` only the object of that uid: one of the same name that came after it is left alone,
    and none is made.

    Raises as `Cluster.send`.
    """
    query = [("fieldManager", FIELD_MANAGER), ("force", "true")]
    where = path_of(item, subresource)
    return await cluster.send("PATCH", where, item, query, "application/apply-patch+yaml")


async def delete(cluster: Cluster, kind: str, name: str, namespace: str = "", uid: str = "") -> bool:
    """Have an object go, and what it owns after it; False if it is gone, or another of its name is there.

    Args:
        cluster: where.
        kind: as `RESOURCES` has it.
        name: of the object.
        namespace: of the object, "" if its kind is of the cluster.
        uid: only the object of this uid; "" takes any.

    Raises as `Cluster.send`.
    """
    options: dict[str, Any] = {"propagationPolicy": "Background"}
    if uid:
        options["preconditions"] = {"uid": uid}
    try:
        await cluster.send("DELETE", path(kind, name, namespace), options)
    except ApiError as error:
        if error.status not in (NOT_FOUND, CONFLICT):
            raise
        return False
    return True
