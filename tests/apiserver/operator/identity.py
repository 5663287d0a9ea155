"""ServiceAccounts by their tokens, as kubelet would mount them into pods."""

from __future__ import annotations

import hashlib
from pathlib import Path

import yaml

from cacheprep.objects import path
from extproc.pool.discovery.kubernetes import Cluster
from tests.apiserver.cluster import ADMIN, ApiServer


async def token(cluster: Cluster, namespace: str, account: str, node: str = "") -> str:
    """A token of a ServiceAccount; with `node`, that of a pod of it there."""
    spec: dict[str, object] = {}
    if node:
        metadata = {"generateName": f"{account}-", "namespace": namespace}
        containers = [{"name": "agent", "image": "warmroute/cacheprep"}]
        body = {"serviceAccountName": account, "nodeName": node, "containers": containers}
        item = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": body}
        pod = await cluster.send("POST", path("Pod", namespace=namespace), item)
        named = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
        spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", **named}
    where = path("ServiceAccount", account, namespace, "token")
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    return str((await cluster.send("POST", where, asked))["status"]["token"])


def kubeconfig_of(server: ApiServer, granted: str, directory: Path) -> Path:
    """A kubeconfig for who has this token."""
    content = yaml.safe_load(server.kubeconfig(ADMIN).read_text())
    content["users"][0]["user"]["token"] = granted
    content["contexts"][0]["context"]["namespace"] = "warmroute-operator"
    file = directory / f"kubeconfig-{hashlib.sha256(granted.encode()).hexdigest()[:8]}"
    file.write_text(yaml.safe_dump(content))
    return file
