"""Cache roots: which directory may be one, and making one of it."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from cacheprep.failures import Failure, Reason
from cacheprep.store import mounts
from cacheprep.store.capacity import OWN_WATERMARK, SHARED_WATERMARK, Disk, Limits, measure
from cacheprep.store.durable import make_directory, write_file
from cacheprep.store.layout import STORE_LINE, Layout
from cacheprep.store.mounts import Mount

KUBELET_FILE = "/etc/hosts"
"""In a pod this is a file of kubelet's root directory, so its device is the disk that kubelet watches."""


class Rules(NamedTuple):
    """What an operator allows of a cache root."""

    kubernetes: bool = False
    """Whether this runs in a pod: then what is a warning by hand is refused."""
    allow_shared_disk: bool = False
    """Take a root on the disk of the system, or of kubelet."""
    allow_file_systems: frozenset[str] = frozenset()
    """File system types to take beside those of `mounts.LOCAL`; locks and renames must hold there."""


class Root(NamedTuple):
    """A cache root that has passed the checks."""

    layout: Layout
    own_disk: bool
    """Whether it is on a disk that is neither the system's nor kubelet's."""
    warnings: tuple[str, ...] = ()

    def limits(self, watermark: float | None = None, reserve: int = 0) -> Limits:
        """What must stay free here; the watermark depends on whose disk it is unless given (0 to 1)."""
        if watermark is None:
            watermark = OWN_WATERMARK if self.own_disk else SHARED_WATERMARK
        return Limits(watermark, reserve)


def open_to_read(path: str) -> Layout:
    """The layout of an existing cache root; nothing is checked that only a writer needs.

    Raises:
        Failure: InvalidRequest if the directory is no cache root.
    """
    layout = Layout(os.path.realpath(path))
    if not _is_store(layout):
        raise _invalid(layout.root, "is no cache root; `cacheprep fetch` makes one")
    return layout


def open_to_write(path: str, rules: Rules) -> Root:
    """Check a directory and make it a cache root if it is not one yet; see `check` and `make`."""
    root = check(path, rules)
    make(root)
    return root


def check(path: str, rules: Rules) -> Root:
    """What a directory would be as a cache root. Changes nothing.

    Args:
        path: the operator's; need not be there.
        rules: what is allowed.

    Raises:
        Failure: InvalidRequest for a network or unknown file system, one mounted read-only, one shared
            with the system where that is refused, a directory in which our names are taken; AccessDenied
            if another user owns it; InsufficientCapacity if the disk is full.
    """
    if not path:
        raise _invalid(path, "is empty; name a directory on a local disk")
    layout = Layout(os.path.realpath(path))
    try:
        return _checked(layout, rules)
    except OSError as error:
        raise os_failure(error, f"cache root {layout.root}") from error


def make(root: Root) -> None:
    """Make the directories of a root that was checked, as far as they lack.

    Raises:
        Failure: as `check`, for what has happened since, and if the disk refuses.
    """
    layout = root.layout
    try:
        if not _is_store(layout):
            make_directory(layout.root)
            write_file(layout.store_file, STORE_LINE.encode(), locked=False)
        _check_owner(layout)
        for directory in layout.directories:
            make_directory(directory)
    except OSError as error:
        raise os_failure(error, f"cache root {layout.root}") from error


def nearest(path: str) -> str:
    """The directory itself, or the nearest one above it that is there.

    Raises:
        Failure: InvalidRequest if what is there is no directory.
    """
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise _invalid(path, "is not a directory")
    return path


def os_failure(error: OSError, what: str) -> Failure:
    """The failure that an error of the local disk is."""
    said = error.strerror or str(error)
    where = f" ({error.filename})" if error.filename else ""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return Failure(Reason.INSUFFICIENT_CAPACITY, f"{what}: {said}{where}; free space, or raise the quota")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Failure(
            Reason.ACCESS_DENIED, f"{what}: {said}{where}; run as the user that owns the cache root"
        )
    if error.errno == errno.EROFS:
        return Failure(Reason.INVALID_REQUEST, f"{what}: is mounted read-only; mount it read-write")
    if error.errno == errno.EIO:
        return Failure(
            Reason.INTEGRITY_MISMATCH, f"{what}: {said}{where}; the disk fails, see the kernel's log"
        )
    return Failure(Reason.INVALID_REQUEST, f"{what}: {said}{where}")


def refusal(kind: str, rules: Rules) -> str:
    """Why a file system type is refused; "" if it is taken."""
    if kind in mounts.LOCAL or kind in rules.allow_file_systems:
        return ""
    return (
        f"is on {kind}, not a local file system, where locks and renames hold between machines or not at all;"
        f" name a directory on a local disk (or allow {kind}, if you know it to be local)"
    )


def _checked(layout: Layout, rules: Rules) -> Root:
    there = nearest(layout.root)
    table = mounts.read()
    mount = mounts.mount_of(there, table)
    if mount is None:
        raise _invalid(layout.root, "is on no known mount")
    if problem := refusal(mount.kind, rules):
        raise _invalid(layout.root, problem)
    if mount.read_only or os.statvfs(there).f_flag & os.ST_RDONLY:
        raise _invalid(layout.root, "is mounted read-only; mount it read-write")
    warnings = []
    own = _own_disk(there, mount, table)
    if not own:
        said = (
            "is on the disk of the system, not a mount of its own: weights and images then fill one disk"
            if mount.kind != "overlay"
            else "is inside the container, and lost with it"
        )
        if rules.kubernetes and not rules.allow_shared_disk:
            raise _invalid(layout.root, f"{said}; mount a disk of its own there, or allow a shared disk")
        warnings.append(f"cache root {layout.root}: {said}")
    # Before the store file is looked for: another process may be making the root, and makes that first.
    taken = [at for at in layout.directories if os.path.lexists(at)]
    if _is_store(layout):
        # What is ready here is of use also on a full disk; a reservation refuses the rest.
        _check_owner(layout)
    else:
        _check_full(layout.root, measure(there))
        if taken:
            raise _invalid(
                layout.root, f"holds {taken[0]}, which is not ours; name an empty directory, or one below it"
            )
    return Root(layout, own, tuple(warnings))


def _check_full(root: str, disk: Disk) -> None:
    if disk.available == 0 or disk.free_inodes == 0:
        what = "inodes" if disk.free_inodes == 0 else "bytes"
        raise Failure(
            Reason.INSUFFICIENT_CAPACITY, f"cache root {root}: the disk is full, 0 {what} are available"
        )


def _check_owner(layout: Layout) -> None:
    owner = os.stat(layout.store_file).st_uid
    if owner != os.geteuid():
        raise Failure(
            Reason.ACCESS_DENIED,
            f"cache root {layout.root}: belongs to uid {owner} and this is uid {os.geteuid()};"
            f" run as uid {owner}",
        )


def _is_store(layout: Layout) -> bool:
    try:
        with open(layout.store_file, encoding="utf-8") as file:
            line = file.read(200)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise os_failure(error, f"cache root {layout.root}") from error
    if line != STORE_LINE:
        raise _invalid(
            layout.root, f"is of another release: {line.strip()!r:.60}, this one reads {STORE_LINE!r}"
        )
    return True


def _own_disk(path: str, mount: Mount, table: list[Mount]) -> bool:
    if mount.kind == "overlay":
        return False
    device = os.stat(path).st_dev
    others = {os.stat(other).st_dev for other in ("/", KUBELET_FILE) if os.path.exists(other)}
    # btrfs gives each subvolume a device number of its own, but mountinfo has one for all of them.
    named = {found.device for other in ("/", KUBELET_FILE) if (found := mounts.mount_of(other, table))}
    return device not in others and mount.device not in named


def _invalid(root: str, problem: str) -> Failure:
    return Failure(Reason.INVALID_REQUEST, f"cache root {root!r}: {problem}")
