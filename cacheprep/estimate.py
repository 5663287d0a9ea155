"""What caching a model on a node is worth, in bytes and seconds. Pure."""

from __future__ import annotations

from typing import NamedTuple

DISK_READ = 7e9
"""Bytes per second that a node reads from its NVMe: what AWS reports for model caching on HyperPod."""
BANDWIDTH = 1.25e9
"""Bytes per second from the source to a node where nothing is said: 10 Gbit/s."""

_GB: dict[str, int] = {
    "g4dn.xlarge": 125,
    "g4dn.2xlarge": 225,
    "g4dn.4xlarge": 225,
    "g4dn.8xlarge": 900,
    "g4dn.12xlarge": 900,
    "g4dn.16xlarge": 900,
    "g4dn.metal": 1800,
    "g5.xlarge": 250,
    "g5.2xlarge": 450,
    "g5.4xlarge": 600,
    "g5.8xlarge": 900,
    "g5.12xlarge": 3800,
    "g5.16xlarge": 1900,
    "g5.24xlarge": 3800,
    "g5.48xlarge": 7600,
    "g6.xlarge": 250,
    "g6.2xlarge": 450,
    "g6.4xlarge": 600,
    "g6.8xlarge": 900,
    "g6.12xlarge": 3760,
    "g6.16xlarge": 1880,
    "g6.24xlarge": 3760,
    "g6.48xlarge": 7520,
    "g6e.xlarge": 250,
    "g6e.2xlarge": 450,
    "g6e.4xlarge": 600,
    "g6e.8xlarge": 900,
    "g6e.12xlarge": 3800,
    "g6e.16xlarge": 1900,
    "g6e.24xlarge": 3800,
    "g6e.48xlarge": 7600,
    "g7e.2xlarge": 1900,
    "g7e.4xlarge": 1900,
    "g7e.8xlarge": 1900,
    "g7e.12xlarge": 3800,
    "g7e.24xlarge": 7600,
    "g7e.48xlarge": 15200,
    "gr6.4xlarge": 600,
    "gr6.8xlarge": 900,
    "p3dn.24xlarge": 1800,
    "p4d.24xlarge": 8000,
    "p4de.24xlarge": 8000,
    "p5.4xlarge": 3800,
    "p5.48xlarge": 30400,
    "p5e.48xlarge": 30400,
    "p5en.48xlarge": 30400,
    "p6-b200.48xlarge": 30400,
    "p6-b300.48xlarge": 30400,
    "trn1.2xlarge": 474,
    "trn1.32xlarge": 7600,
    "trn2.3xlarge": 470,
    "trn2.48xlarge": 7600,
}
NODE_TYPES: dict[str, int] = {name: size * 10**9 for name, size in _GB.items()}
"""Instance store of all disks together, in bytes, by EC2 instance type: InstanceStorageInfo.TotalSizeInGB of
the EC2 API's DescribeInstanceTypes. Where the disks are not one volume (RAID 0 or LVM), say `--disk`.
"""


class Estimate(NamedTuple):
    """Bytes and seconds; see `estimate`."""

    bytes: int
    disk_bytes: int
    share: float
    """Of the disk, 0 to 1 and more."""
    fits: int
    """How many such models an empty disk takes below the watermark."""
    fill_s: float
    """To fetch it once: what a node waits for the first time, and a cold pod each time."""
    read_s: float
    """To read it from the disk."""
    saved_s: float
    """Less waiting of a pod that starts on a warm node instead of a cold one, never below 0."""


def estimate(
    model_bytes: int, disk_bytes: int, *, bandwidth: float, disk_read: float, watermark: float
) -> Estimate:
    """Size a model (bytes) against a disk (bytes) of a node.

    `bandwidth` from the source and `disk_read` are bytes per second, `watermark` is the share of the disk
    that may be in use. A cold pod is taken to stream weights from the source to the GPU, so its waiting is
    `fill_s`; one that stores them first waits for `read_s` too, and saves that much more. Raises ValueError
    unless sizes and rates are positive.
    """
    if min(model_bytes, disk_bytes, bandwidth, disk_read, watermark) <= 0:
        raise ValueError("sizes, rates and the watermark must be more than 0")
    fill_s, read_s = model_bytes / bandwidth, model_bytes / disk_read
    return Estimate(
        bytes=model_bytes,
        disk_bytes=disk_bytes,
        share=model_bytes / disk_bytes,
        fits=int(disk_bytes * watermark) // model_bytes,
        fill_s=fill_s,
        read_s=read_s,
        saved_s=max(0.0, fill_s - read_s),
    )
