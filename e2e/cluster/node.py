"""The image of a node: what `kind build node-image` makes, without anything to pull.

KIND_NODE_IMAGE names a published one instead, such as `kindest/node:v1.34.4`.
"""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from e2e.cluster import cache, components, debian, golang, images, published, versions
from e2e.cluster.command import run, succeeds

STORAGE = """\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: standard, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/no-provisioner
volumeBindingMode: WaitForFirstConsumer
"""
"""kind applies such a manifest to a new cluster; nothing here claims volumes."""


def image() -> str:
    """The node image's reference. Raises `ClusterError` or `golang.BuildError`."""
    pulled = published.node()
    if pulled:
        if not images.exists(pulled):
            run("docker", "pull", pulled)
        return pulled
    base, wanted = _base(), components.images_of_kubernetes()
    binaries = golang.kubernetes(["kubeadm", "kubelet", "kubectl"])
    said = "\n".join([STORAGE, images.identity(base), *map(images.identity, wanted), *map(str, binaries)])
    tag = f"warmroute-e2e/node:{hashlib.sha256(said.encode()).hexdigest()[:16]}"
    with cache.alone("image-node"):
        if not images.exists(tag):
            _commit(base, tag, binaries, wanted)
            images.prune("node")
    return tag


def _base() -> str:
    """A root file system that systemd boots in a container, with kind's scripts and units in it."""
    binaries = [golang.program(one) for one in golang.CONTAINERD]
    return images.build(
        "node-base",
        images.DOCKERFILES / "node-base.Dockerfile",
        {
            "kind": golang.source("sigs.k8s.io/kind", versions.KIND) / "images/base/files",
            **{f"bin/{binary.name}": binary for binary in binaries},
            "containerd.conf": images.DOCKERFILES / "containerd.conf",
        },
        {"BASE": debian.image()},
    )


def _commit(base: str, tag: str, binaries: list[Path], wanted: list[str]) -> None:
    container = run(
        *("docker", "run", "--detach", "--privileged", "--entrypoint", "sleep", base, "infinity")
    ).strip()
    inside = ("docker", "exec", container)
    try:
        for binary in binaries:
            run("docker", "cp", binary, f"{container}:/usr/bin/{binary.name}")
        for place, content in {
            "/kind/version": versions.KUBERNETES,
            "/kind/manifests/default-storage.yaml": STORAGE,
        }.items():
            run("docker", "exec", "-i", container, "tee", place, stdin=content)
        starting = "containerd & echo $! > /run/containerd.pid; wait"
        run("docker", "exec", "--detach", container, "sh", "-c", starting)
        run(*inside, "sh", "-c", "until ctr version >/dev/null 2>&1; do sleep 0.1; done", seconds=60)
        with tempfile.NamedTemporaryFile(suffix=".tar") as archive:
            run("docker", "save", "--output", archive.name, *wanted)
            run("docker", "cp", archive.name, f"{container}:/images.tar")
        importing = ("ctr", "-n", "k8s.io", "images", "import")
        run(*inside, *importing, "--all-platforms", "--no-unpack", "/images.tar")
        run(*inside, "rm", "/images.tar")
        stopping = "kill $pid; while kill -0 $pid 2>/dev/null; do sleep 0.1; done"
        run(*inside, "sh", "-c", f"pid=$(cat /run/containerd.pid); {stopping}", seconds=60)
        entry = 'ENTRYPOINT ["/usr/local/bin/entrypoint", "/sbin/init"]'
        run("docker", "commit", "--change", entry, "--change", "CMD []", container, tag)
    finally:
        succeeds("docker", "rm", "--force", "--volumes", container)
