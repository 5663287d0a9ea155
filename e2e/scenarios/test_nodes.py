"""What the other stories rely on: nodes like a cloud's, a registry to pull from, figures of load."""

from __future__ import annotations

import json

import pytest

from e2e.cluster import golang, hardware, images, kind, registry
from e2e.cluster.command import ClusterError, run
from e2e.scenarios import stack
from tests.envoy.process import eventually

pytestmark = pytest.mark.usefixtures("made")


async def test_workers_have_gpus_a_zone_a_disk_and_a_boot_id_of_their_own() -> None:
    nodes = {
        node["metadata"]["name"]: node
        for node in json.loads(await stack.kubectl("get", "nodes", "--output=json"))["items"]
    }
    assert set(nodes) == set(kind.NODES)
    assert len({node["status"]["nodeInfo"]["bootID"] for node in nodes.values()}) == len(nodes)
    for worker in kind.WORKERS:
        assert nodes[worker]["status"]["allocatable"]["nvidia.com/gpu"] == str(hardware.GPUS)
        assert nodes[worker]["metadata"]["labels"]["topology.kubernetes.io/zone"] == kind.ZONES[worker]
        assert {taint["key"] for taint in nodes[worker]["spec"]["taints"]} == {"nvidia.com/gpu"}
    disks = [
        run("docker", "exec", worker, "findmnt", "-no", "SOURCE", hardware.NVME) for worker in kind.WORKERS
    ]
    assert len(set(disks)) == len(kind.WORKERS)


async def test_a_pod_pulls_what_was_pushed_to_the_registry() -> None:
    image = registry.push(images.program(golang.hold()), "hold:1")
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "pulled", "namespace": "default"},
        "spec": {
            "containers": [{"name": "hold", "image": image, "imagePullPolicy": "Always"}],
            "tolerations": [{"operator": "Exists"}],
            "nodeName": kind.WORKERS[0],
        },
    }
    try:
        await stack.kubectl("create", "--filename=-", stdin=json.dumps(pod))
        await stack.kubectl("wait", "pod/pulled", "--for=condition=Ready", "--timeout=60s")
    finally:
        await stack.kubectl("delete", "pod/pulled", "--ignore-not-found")


async def test_the_load_of_pods_is_measured() -> None:
    path = "/apis/metrics.k8s.io/v1beta1/namespaces/kube-system/pods"

    async def measured() -> bool:
        try:
            found = json.loads(await stack.kubectl("get", "--raw", path))["items"]
        except ClusterError:
            # Of an API that others serve: unavailable while these do not.
            return False
        return any(pod["metadata"]["name"].startswith("coredns") for pod in found)

    await eventually(measured, "metrics-server knows the pods' load", 90)
