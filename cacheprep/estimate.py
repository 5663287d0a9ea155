"""What caching a model on a node is worth, in bytes and seconds. Pure."""

from __future__ import annotations

from typing import NamedTuple

DISK_READ = 7e9
"""Bytes per second that a node reads from its NVMe: what AWS reports for model caching on HyperPod."""
BANDWIDTH = 1.25e9
"""Bytes per second from the source to a node where nothing is said: 10 Gbit/s."""

GB = 10**9
NODE_TYPES: dict[str, int] = {
    "g4dn.xlarge": 125 * GB,
    "g4dn.2xlarge": 225 * GB,
    "g4dn.4xlarge": 225 * GB,
    "g4dn.8xlarge": 900 * GB,
    "g4dn.12xlarge": 900 * GB,
    "g4dn.16xlarge": 900 * GB,
    "g5.xlarge": 250 * GB,
    "g5.2xlarge": 450 * GB,
    "g5.4xlarge": 600 * GB,
    "g5.8xlarge": 900 * GB,
    "g5.12xlarge": 3800 * GB,
    "g5.16xlarge": 1900 * GB,
    "g5.24xlarge": 3800 * GB,
    "g5.48xlarge": 2 * 3800 * GB,
    "g6.xlarge": 250 * GB,
    "g6.2xlarge": 450 * GB,
    "g6.4xlarge": 600 * GB,
    "g6.8xlarge": 2 * 450 * GB,
    "g6.12xlarge": 4 * 940 * GB,
    "g6.16xlarge": 2 * 940 * GB,
    "g6.24xlarge": 4 * 940 * GB,
    "g6.48xlarge": 8 * 940 * GB,
    "g6e.xlarge": 250 * GB,
    "g6e.2xlarge": 450 * GB,
    "g6e.4xlarge": 600 * GB,
    "g6e.8xlarge": 900 * GB,
    "g6e.12xlarge": 2 * 1900 * GB,
    "g6e.16xlarge": 1900 * GB,
    "g6e.24xlarge": 2 * 1900 * GB,
    "g6e.48xlarge": 4 * 1900 * GB,
    "p4d.24xlarge": 8 * 1000 * GB,
    "p4de.24xlarge": 8 * 1000 * GB,
    "p5.48xlarge": 8 * 3840 * GB,
    "p5e.48xlarge": 8 * 3840 * GB,
    "p5en.48xlarge": 8 * 3840 * GB,
}
"""Instance store of all disks together, in bytes, by EC2 instance type.

https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html, "Instance store specifications". Disks that are
not one volume (RAID 0 or LVM) give one of them only: say `--disk` then.
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
