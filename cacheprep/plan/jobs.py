"""Jobs that list a source, and that fetch to one node, as objects of Kubernetes.

They run in the namespace of the endpoint, under its ServiceAccount and with its Secrets, so that no
credential leaves the namespace.
"""

from __future__ import annotations

from typing import Any

from cacheprep.api import Endpoint, ModelDataCacheConfig
from cacheprep.api.names import (
    ATTEMPT,
    CACHE,
    CACHE_KEY,
    COMPONENT,
    ENDPOINT,
    ENDPOINT_KIND,
    NODE,
    NODE_HASH,
    RETRY,
    SOURCE,
)
from cacheprep.api.serving import Mount
from cacheprep.api.sources import MOUNTED_AT, TOKEN_VARIABLE, Arguments, arguments
from cacheprep.failures import Reason
from cacheprep.plan.identity import checksum, origin, store_path
from cacheprep.plan.observed import Component, Node
from cacheprep.plan.settings import Settings

JsonObject = dict[str, Any]

CONTAINER = "cacheprep"
STORE_MOUNTED_AT = "/cache"
LISTING_MOUNTED_AT = "/listing"
UNPRIVILEGED = 65532
"""The user of a store that is reached by a claim: Pod Security "restricted" forbids root. By hostPath it is
root without capabilities, for kubelet makes missing directories as root's."""

_DEFECTS_TRIED = 2


def resolve_job(
    endpoint: Endpoint, cache: ModelDataCacheConfig, component: Component, attempt: int, settings: Settings
) -> JsonObject:
    """The Job that prints the listing of a cache's source; `component` is RESOLVE or DRIFT."""
    said = arguments(cache.spec.source)
    args = ["sources", "resolve", said.url, *said.options, "--output=-"]
    return _job(
        f"{component}-{checksum([cache.namespace, cache.name])}-{attempt}",
        endpoint,
        cache,
        component,
        attempt,
        settings,
        {"containers": [_container(args, said, cache.spec.mount, settings)], "volumes": source_volumes(said)},
    )


def fill_job(
    endpoint: Endpoint, cache: ModelDataCacheConfig, node: Node, attempt: int, settings: Settings
) -> JsonObject:
    """The Job that fetches a cache to a node. Its name is the same for the same key, node and attempt, so
    that the API server refuses a second one."""
    said = arguments(cache.spec.source)
    args = ["fetch", f"--to={STORE_MOUNTED_AT}", f"--listing={LISTING_MOUNTED_AT}", *said.options, "--quiet"]
    if settings.allow_shared_disk:
        args.append("--allow-shared-disk")
    container = _container(args, said, cache.spec.mount, settings)
    container["volumeMounts"] += store_mounts()
    pinned = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node.name]}]}
    place = [cache.namespace, cache.spec.host_path, cache.status.key, node.name]
    job = _job(
        f"fill-{checksum(place, 16)}-{attempt}",
        endpoint,
        cache,
        Component.FILL,
        attempt,
        settings,
        {
            "containers": [container],
            "volumes": source_volumes(said) + store_volumes(cache),
            # Not nodeName, which goes past the scheduler, nor the label of the host name, which is no name.
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [pinned]}
                }
            },
        },
    )
    job["metadata"]["labels"] |= {CACHE_KEY: cache.status.key, NODE_HASH: checksum([node.name])}
    job["metadata"]["annotations"][NODE] = node.name
    job["spec"]["activeDeadlineSeconds"] = settings.deadline_s
    return job


def owned_by(owner: Any) -> JsonObject:
    """An ownerReference to an object of the API."""
    return {
        "apiVersion": owner.api_version,
        "kind": owner.KIND,
        "name": owner.name,
        "uid": owner.uid,
        "controller": True,
        "blockOwnerDeletion": False,
    }


def source_volumes(said: Arguments) -> list[JsonObject]:
    """Volumes that reading a source takes, and room for temporary files."""
    volumes: list[JsonObject] = [{"name": "warmroute-tmp", "emptyDir": {}}]
    if said.claim is not None:
        claim = {"claimName": said.claim, "readOnly": True}
        volumes.append({"name": "warmroute-source", "persistentVolumeClaim": claim})
    return volumes


def source_mounts(said: Arguments) -> list[JsonObject]:
    """Where they are mounted."""
    mounts: list[JsonObject] = [{"name": "warmroute-tmp", "mountPath": "/tmp"}]  # noqa: S108 - in a container
    if said.claim is not None:
        mounts.append({"name": "warmroute-source", "mountPath": MOUNTED_AT, "readOnly": True})
    return mounts


def store_volumes(cache: ModelDataCacheConfig) -> list[JsonObject]:
    """The namespace's directory on the node, and the listing."""
    volume: JsonObject = {"name": "warmroute-cache"}
    if cache.spec.mount is Mount.PVC:
        volume["persistentVolumeClaim"] = {"claimName": cache.spec.claim_name}
    else:
        path = store_path(cache.spec.host_path, cache.namespace)
        volume["hostPath"] = {"path": path, "type": "DirectoryOrCreate"}
    parts = [
        # A warm node needs no listing: pods start there also if it is lost.
        {"configMap": {"name": listing_name(cache.name, part), "optional": True}}
        for part in range(cache.status.listing_parts)
    ]
    return [volume, {"name": "warmroute-listing", "projected": {"sources": parts}}]


def store_mounts() -> list[JsonObject]:
    """Where they are mounted."""
    return [
        {"name": "warmroute-cache", "mountPath": STORE_MOUNTED_AT},
        {"name": "warmroute-listing", "mountPath": LISTING_MOUNTED_AT, "readOnly": True},
    ]


def listing_name(cache: str, part: int) -> str:
    """Name of a ConfigMap with a part of a listing."""
    return f"{cache}-listing-{part}"


def environment(said: Arguments) -> JsonObject:
    """Fields `env` and `envFrom` of a container that reads a source."""
    variables: list[JsonObject] = [{"name": "HOME", "value": "/tmp"}]  # noqa: S108 - in a container
    if said.token is not None:
        reference = {"name": said.token.name, "key": said.token.key}
        variables.append({"name": TOKEN_VARIABLE, "valueFrom": {"secretKeyRef": reference}})
    made: JsonObject = {"env": variables}
    if said.credentials is not None:
        made["envFrom"] = [{"secretRef": {"name": said.credentials.name}}]
    return made


def store_user(mount: Mount) -> int:
    """The uid to which a namespace's store belongs."""
    return UNPRIVILEGED if mount is Mount.PVC else 0


def confined(user: int) -> JsonObject:
    """The securityContext of a container that runs as this uid, with as little as it can do with."""
    return {
        "runAsUser": user,
        "runAsGroup": user,
        "runAsNonRoot": bool(user),
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container(args: list[str], said: Arguments, mount: Mount, settings: Settings) -> JsonObject:
    return {
        "name": CONTAINER,
        "image": settings.image,
        "args": args,
        **environment(said),
        "volumeMounts": source_mounts(said),
        "securityContext": confined(store_user(mount)),
        "resources": {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
        # What it said last is then in the pod's status.
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _job(
    name: str,
    endpoint: Endpoint,
    cache: ModelDataCacheConfig,
    component: Component,
    attempt: int,
    settings: Settings,
    pod: JsonObject,
) -> JsonObject:
    template = endpoint.spec.engine.template.spec
    labels = {
        ENDPOINT: endpoint.name,
        ENDPOINT_KIND: endpoint.KIND,
        CACHE: cache.name,
        COMPONENT: component.value,
        SOURCE: origin(cache.spec.source, cache.namespace),
    }
    shared = {
        name: template[name] for name in ("serviceAccountName", "imagePullSecrets") if template.get(name)
    }
    pod_spec = {
        "restartPolicy": "Never",
        # Else nodes with GPUs, which are tainted, would never be filled; and there may be none to list on.
        "tolerations": template.get("tolerations") or [],
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **shared,
        **pod,
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": cache.namespace,
            "labels": labels,
            "annotations": {
                ATTEMPT: str(attempt),
                RETRY: endpoint.metadata.annotations.get(RETRY, ""),
            },
            "ownerReferences": [owned_by(cache)],
        },
        "spec": {
            "backoffLimit": _DEFECTS_TRIED,
            "ttlSecondsAfterFinished": settings.job_kept_s,
            "podFailurePolicy": {"rules": _FAILURE_RULES},
            "template": {
                "metadata": {
                    "labels": {name: labels[name] for name in (COMPONENT, CACHE)},
                    "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"},
                },
                "spec": pod_spec,
            },
        },
    }


def _exits(action: str, *codes: int) -> JsonObject:
    values = sorted(codes)
    return {
        "action": action,
        "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": values},
    }


_FAILURE_RULES = [
    # A node that is drained, or a pod that was preempted, is no failure of the source.
    {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
    _exits("Ignore", Reason.CANCELED.exit_code),
    # One rule for each reason: the Job's condition then says which one it was. Waiting is done by `retry`.
    *(_exits("FailJob", reason.exit_code) for reason in Reason if reason is not Reason.CANCELED),
]
