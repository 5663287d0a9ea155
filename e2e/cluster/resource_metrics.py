"""metrics-server: the source of the CPU and memory figures that a HorizontalPodAutoscaler reads."""

from __future__ import annotations

from typing import Any

import yaml

from e2e.cluster import golang, images, kind, versions


def image() -> str:
    """Its image. Raises `ClusterError` or `golang.BuildError`."""
    return images.program(golang.metrics_server())


def install() -> None:
    """Install it as its own manifests say, and wait until it is available. Raises `ClusterError`."""
    base = golang.source("sigs.k8s.io/metrics-server", versions.METRICS_SERVER) / "manifests/base"
    objects = list(yaml.safe_load_all(kind.kubectl("kustomize", base)))
    for one in objects:
        if one["kind"] == "Deployment":
            _adapt(one["spec"]["template"]["spec"]["containers"][0])
    kind.apply(objects)
    kind.kubectl(
        *("rollout", "status", "deployment/metrics-server", "--namespace=kube-system", "--timeout=120s")
    )
    kind.kubectl("wait", "apiservice/v1beta1.metrics.k8s.io", "--for=condition=Available", "--timeout=120s")


def _adapt(container: dict[str, Any]) -> None:
    container["image"] = image()
    # kind's kubelets sign their own certificates.
    container["args"] += ["--kubelet-insecure-tls"]
    # What it asks for as a whole is much on two cores.
    container["resources"] = {"requests": {"cpu": "20m", "memory": "64Mi"}}
