"""What makes a container look like a cloud's GPU machine: GPUs, local NVMe, a boot id of its own."""

from __future__ import annotations

import json
import os
import time
import uuid
from pathlib import Path

from e2e.cluster import cache, kind, packages
from e2e.cluster.command import ClusterError, run, succeeds

GPUS = 8
"""Of each worker. Nothing drives them: the scheduler counts them, and that is what is tested."""
TAINT = "nvidia.com/gpu=present:NoSchedule"

NVME = "/opt/dlami/nvme"
"""Where the deep-learning machine images of a cloud mount the local disks."""
NVME_BYTES = 8 << 30
"""Size of each; the file behind it is sparse."""


def mounts() -> dict[str, list[tuple[Path, str]]]:
    """What each node is to have mounted: (a path here, a path in the node). Makes and mounts what is missing.

    Raises `ClusterError` where this user may not mount.
    """
    packages.need({"mkfs.ext4": "e2fsprogs", "losetup": "mount"})
    wanted: dict[str, list[tuple[Path, str]]] = {}
    for node in kind.NODES:
        boot = _directory(node) / "boot"
        boot.mkdir(parents=True, exist_ok=True)
        (boot / "id").write_text(f"{uuid.uuid4()}\n")
        wanted[node] = [(boot, os.path.dirname(kind.BOOT_ID))]
    for worker in kind.WORKERS:
        wanted[worker].append((_disk(worker), NVME))
    return wanted


def attach() -> None:
    """Give the workers their GPUs and their taint, and wait until the scheduler counts them.

    Raises `ClusterError`.
    """
    capacity = [{"op": "add", "path": "/status/capacity/nvidia.com~1gpu", "value": str(GPUS)}]
    for worker in kind.WORKERS:
        patch = ("--type=json", f"--patch={json.dumps(capacity)}")
        kind.kubectl("patch", "node", worker, "--subresource=status", *patch)
        kind.kubectl("taint", "node", worker, "--overwrite", TAINT)
    deadline = time.monotonic() + 60
    query = r"jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}"
    while kind.kubectl("get", "nodes", "--output", query).split() != [str(GPUS)] * len(kind.WORKERS):
        if time.monotonic() > deadline:
            raise ClusterError("the workers' GPUs do not become allocatable: look at the kubelets' logs")
        time.sleep(0.5)


def detach() -> None:
    """Unmount the disks, and remove them: the next cluster begins with empty ones."""
    for worker in kind.WORKERS:
        directory = _directory(worker)
        if os.path.ismount(directory / "nvme"):
            run("umount", directory / "nvme")
        (directory / "nvme.img").unlink(missing_ok=True)


def _disk(worker: str) -> Path:
    """A file system of its own, so that a full disk is only this node's."""
    directory = _directory(worker)
    place, file = directory / "nvme", directory / "nvme.img"
    place.mkdir(parents=True, exist_ok=True)
    if os.path.ismount(place):
        return place
    with file.open("wb") as image:
        image.truncate(NVME_BYTES)
    # All of it for the user: a cache's capacity is then what df says.
    run("mkfs.ext4", "-q", "-F", "-m", "0", file)
    if not succeeds("mount", "-o", "loop", file, place):
        raise ClusterError(f"{file} cannot be mounted as {place}: this needs root and loop devices")
    return place


def _directory(node: str) -> Path:
    return cache.root() / "e2e" / "nodes" / node
