"""The images that kubeadm asks for, made of our binaries and named as it names them."""

from __future__ import annotations

from e2e.cluster import debian, golang, images, versions
from e2e.cluster.command import run

REGISTRY = "registry.k8s.io"


def images_of_kubernetes() -> list[str]:
    """The references of all of them, built and tagged. Raises `ClusterError` or `golang.BuildError`."""
    control_plane = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"]
    built = {
        f"{REGISTRY}/{binary.name}:{versions.KUBERNETES}": images.program(binary)
        for binary in golang.kubernetes(control_plane)
    }
    built[f"{REGISTRY}/kube-proxy:{versions.KUBERNETES}"] = _kube_proxy()
    built[f"{REGISTRY}/etcd:{versions.ETCD_IMAGE}"] = images.program(golang.etcd())
    built[f"{REGISTRY}/coredns/coredns:{versions.COREDNS_IMAGE}"] = images.program(
        golang.program(golang.COREDNS)
    )
    for tag in versions.PAUSE_IMAGES:
        built[f"{REGISTRY}/pause:{tag}"] = images.program(golang.hold())
    for reference, image in built.items():
        run("docker", "tag", image, reference)
    return list(built)


def _kube_proxy() -> str:
    (binary,) = golang.kubernetes(["kube-proxy"])
    dockerfile = images.DOCKERFILES / "kube-proxy.Dockerfile"
    return images.build("kube-proxy", dockerfile, {"kube-proxy": binary}, {"BASE": debian.image()})
