"""The cluster: one control plane and three workers that look like a cloud's GPU nodes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from e2e.cluster import cache, golang
from e2e.cluster.command import run

NAME = "warmroute"
CONTROL_PLANE = f"{NAME}-control-plane"
WORKERS = tuple(f"{NAME}-worker{number}" for number in ("", "2", "3"))
NODES = (CONTROL_PLANE, *WORKERS)

ZONES = dict(zip(WORKERS, ("local-1a", "local-1b", "local-1c"), strict=True))

GATEWAY_PORT = 30080
"""Port of the control plane's node that Docker shows on a loopback port of the host; `gateway.py` has the
gateway listen there."""

BOOT_ID = "/kind/boot/id"
"""Where a node's own boot id is, as its kubelet reads it: containers of one machine share the kernel's."""


def kubeconfig() -> Path:
    """The administrator's, of this cluster alone."""
    return cache.root() / "e2e" / "kubeconfig"


def kubectl(*words: str | Path, stdin: str | bytes | None = None, seconds: float | None = None) -> str:
    """What kubectl of this cluster says. Raises `ClusterError`."""
    (binary,) = golang.kubernetes(["kubectl"])
    return run(binary, "--kubeconfig", kubeconfig(), *words, stdin=stdin, seconds=seconds)


def helm(*words: str | Path, values: dict[str, Any] | None = None) -> str:
    """What Helm says, told `values`, if any, beside those of the chart. Raises `ClusterError`."""
    given = () if values is None else ("--values", "-")
    return run(
        golang.program(golang.HELM),
        *words,
        *("--kubeconfig", kubeconfig(), *given),
        stdin=None if values is None else yaml.safe_dump(values),
    )


def apply(objects: Sequence[dict[str, Any]]) -> None:
    """Apply objects, server-side. Raises `ClusterError`."""
    kubectl(
        *("apply", "--server-side", "--force-conflicts", "--field-manager=e2e", "--filename=-"),
        stdin=yaml.safe_dump_all(objects),
    )


def runs() -> bool:
    """Whether the cluster's nodes are there."""
    said = run("docker", "ps", "--format", "{{.Names}}").split()
    return set(NODES) <= set(said) and kubeconfig().exists()


def create(image: str, mounts: dict[str, list[tuple[Path, str]]]) -> None:
    """Create the nodes of `image`, each with its mounts (a path here, a path in the node).

    They are not ready before the network is. Raises `ClusterError`.
    """
    delete()
    kubeconfig().parent.mkdir(parents=True, exist_ok=True)
    _kind(
        *("create", "cluster", "--image", image, "--config", "-", "--wait", "0s"),
        stdin=yaml.safe_dump(_config(mounts)),
    )


def delete() -> None:
    """Remove the nodes, if they are there, and all that is in them. Raises `ClusterError`."""
    _kind("delete", "cluster", "--name", NAME)


def gateway_address() -> str:
    """`127.0.0.1:port` of this machine, where the gateway answers. Raises `ClusterError`."""
    return run("docker", "port", CONTROL_PLANE, f"{GATEWAY_PORT}/tcp").split()[0]


def _kind(*words: str, stdin: str | None = None) -> None:
    run(
        golang.program(golang.KIND),
        *words,
        *("--kubeconfig", kubeconfig()),
        stdin=stdin,
        environment={"KIND_EXPERIMENTAL_PROVIDER": "docker", "TMPDIR": os.environ.get("TMPDIR", "/tmp")},
    )


def _config(mounts: dict[str, list[tuple[Path, str]]]) -> dict[str, Any]:
    def node(name: str, role: str, **more: Any) -> dict[str, Any]:
        mounted = [{"hostPath": str(here), "containerPath": there} for here, there in mounts.get(name, ())]
        return {"role": role, "extraMounts": mounted, **more}

    # Port 0: a free one.
    port = {"containerPort": GATEWAY_PORT, "hostPort": 0, "listenAddress": "127.0.0.1"}
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": NAME,
        "networking": {"disableDefaultCNI": True, "apiServerAddress": "127.0.0.1"},
        "kubeadmConfigPatches": [
            yaml.safe_dump(
                {
                    "kind": "KubeletConfiguration",
                    "failCgroupV1": False,
                    "serializeImagePulls": False,
                    # Changed ConfigMaps reach mounts so much sooner than in a minute.
                    "syncFrequency": "5s",
                }
            ),
            # What needs no GPU runs beside the control plane: there is no other node without a taint.
            _kubelet("InitConfiguration", taints=[]),
            _kubelet("JoinConfiguration"),
        ],
        "nodes": [
            node(CONTROL_PLANE, "control-plane", extraPortMappings=[port]),
            *(node(name, "worker", labels=_labels(name)) for name in WORKERS),
        ],
    }


def _kubelet(kind: str, **registration: Any) -> str:
    arguments = {"boot-id-file": BOOT_ID}
    return yaml.safe_dump({"kind": kind, "nodeRegistration": {"kubeletExtraArgs": arguments, **registration}})


def _labels(worker: str) -> dict[str, str]:
    return {
        "topology.kubernetes.io/region": "local-1",
        "topology.kubernetes.io/zone": ZONES[worker],
        "node.kubernetes.io/instance-type": "gpu.8xlarge",
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    }
