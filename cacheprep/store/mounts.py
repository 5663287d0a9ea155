"""Which file system a directory is on, from /proc/self/mountinfo. Pure but for `read`."""

from __future__ import annotations

import re
from typing import NamedTuple

MOUNTINFO = "/proc/self/mountinfo"

LOCAL = frozenset(
    ("bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs", "ramfs")
)
"""File systems whose locks and renames hold on this machine alone. Every other is taken for a network file
system: a list of those would never be whole, and most of what is mounted by FUSE is one."""

_ESCAPE = re.compile(r"\\([0-7]{3})")


class Mount(NamedTuple):
    """A line of mountinfo, proc_pid_mountinfo(5)."""

    device: str
    """major:minor; equal for every mount of one file system."""
    point: str
    kind: str
    """As ext4, nfs4, fuse.s3fs."""
    read_only: bool


def parse(text: str) -> list[Mount]:
    """Every mount of a mountinfo file, in its order; lines that are none are left out."""
    found = []
    for line in text.splitlines():
        head, _, tail = line.partition(" - ")
        fields, kinds = head.split(" "), tail.split(" ")
        if len(fields) < 6 or len(kinds) < 2:
            continue
        options = fields[5].split(",") + (kinds[2].split(",") if len(kinds) > 2 else [])
        found.append(Mount(fields[2], _plain(fields[4]), kinds[0], "ro" in options))
    return found


def mount_of(path: str, mounts: list[Mount]) -> Mount | None:
    """The mount that an absolute path without symbolic links is on: the longest, and of those the last."""
    best: Mount | None = None
    for mount in mounts:
        below = mount.point if mount.point.endswith("/") else f"{mount.point}/"
        if (path == mount.point or path.startswith(below)) and (
            best is None or len(mount.point) >= len(best.point)
        ):
            best = mount
    return best


def read() -> list[Mount]:
    """The mounts that this process sees."""
    with open(MOUNTINFO, encoding="utf-8", errors="surrogateescape") as file:
        return parse(file.read())


def _plain(escaped: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), escaped)
