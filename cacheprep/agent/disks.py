"""What lies on the disks of a node: the cache roots, and the store of each namespace below them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

from cacheprep.agent.claims import Claims, Place
from cacheprep.agent.confinement import confined
from cacheprep.api.caches import RootStatus
from cacheprep.api.model import MOST_MESSAGE
from cacheprep.failures import Failure
from cacheprep.plan.identity import STORE_DIRECTORY, store_path
from cacheprep.store import mounts
from cacheprep.store.capacity import measure
from cacheprep.store.durable import delete_tree
from cacheprep.store.inventory import Entry, inventory
from cacheprep.store.layout import DIRECTORY_MODE, Layout
from cacheprep.store.root import Rules, check, nearest, open_to_read, os_failure


class Found(NamedTuple):
    """A cache, and where it is."""

    place: Place
    entry: Entry
    layout: Layout


class Disks(NamedTuple):
    """All of it at one moment."""

    roots: tuple[RootStatus, ...]
    caches: tuple[Found, ...]
    full: frozenset[str]
    """Roots on which nothing more may be fetched."""


def look(roots: Sequence[str], rules: Rules) -> Disks:
    """What is there now. Stats every file of every cache; reads nothing but markers and manifests.

    Args:
        roots: cache roots that the operator allows.
        rules: what else it allows.
    """
    statuses: list[RootStatus] = []
    caches: list[Found] = []
    full: set[str] = set()
    for root in roots:
        status, is_full = _root(root, rules)
        statuses.append(status)
        full |= {root} if is_full else set()
        for namespace in _names(root):
            caches += _caches(root, namespace)
    return Disks(tuple(statuses), tuple(caches), frozenset(full))


def _caches(root: str, namespace: str) -> list[Found]:
    """The caches of a namespace's store; none where its files are not as a store's are: others are to be seen
    all the same."""
    layout = Layout(store_path(root, namespace))
    # A link would lead out of the root.
    if os.path.islink(layout.root):
        return []
    try:
        entries = confined(layout.root, _entries)
    except (Failure, OSError, ValueError):
        return []
    return [
        Found(
            Place(root, namespace, one.key),
            # From outside.
            one._replace(path=layout.model(one.key) if one.path else ""),
            layout,
        )
        for one in entries
    ]


def _entries(inside: Layout) -> list[Entry]:
    return inventory(open_to_read(inside.root))


def prepare(place: str, user: int) -> bool:
    """Have the directory that a claim stands for, of the user that fetches there; whether anything was done.

    kubelet would make it as root's, and pods of level "restricted" are not root. One in which there is a
    store already is left as it is.

    Args:
        place: the directory, below a cache root.
        user: uid and gid.

    Raises:
        OSError: the disk refused.
    """
    if os.path.islink(place) or os.path.exists(Layout(place).store_file):
        return False
    os.makedirs(place, mode=DIRECTORY_MODE, exist_ok=True)
    if os.stat(place).st_uid == user:
        return False
    os.chown(place, user, user)
    return True


def dismantle(roots: Sequence[str], claims: Claims) -> list[str]:
    """Remove the stores that hold nothing, of namespaces in which nobody claims anything, and directories in
    which kubelet, who makes them, never saw a store come; which they were."""
    claimed = {(place.root, place.namespace) for place in (*claims.wanted, *claims.released)}
    using = {namespace for namespace, _ in claims.used}
    gone = []
    for root in roots:
        for namespace in _names(root):
            if (root, namespace) in claimed or namespace in using:
                continue
            path = store_path(root, namespace)
            if os.path.islink(path):
                continue
            try:
                if confined(path, _is_empty):
                    delete_tree(path)
                    gone.append(path)
            except Failure:
                # No store: it goes only if nothing is in it, and is not one that was made for a claim
                # (`prepare`), which is another user's.
                with suppress(OSError):
                    if os.lstat(path).st_uid == os.geteuid():
                        os.rmdir(path)
                        gone.append(path)
            except OSError:
                continue
    return gone


def _is_empty(inside: Layout) -> bool:
    layout = open_to_read(inside.root)
    return not any(
        os.listdir(at) for at in (layout.caches, layout.partials, layout.trash) if os.path.isdir(at)
    )


def _names(root: str) -> list[str]:
    try:
        return sorted(os.listdir(_below(root)))
    except OSError:
        return []


def _below(root: str) -> str:
    """The directory that holds a store for each namespace."""
    return os.path.join(root, STORE_DIRECTORY)


def _root(path: str, rules: Rules) -> tuple[RootStatus, bool]:
    try:
        found = check(_below(path), rules)
        there = nearest(found.layout.root)
        disk, mount = measure(there), mounts.mount_of(there, mounts.read())
    except (Failure, OSError) as error:
        failure = error if isinstance(error, Failure) else os_failure(error, f"cache root {path}")
        return RootStatus(
            path=path, usable=False, reason=failure.reason, message=failure.message[:MOST_MESSAGE]
        ), False
    status = RootStatus(
        path=path,
        usable=True,
        file_system=mount.kind if mount else None,
        total_bytes=disk.used + disk.available,
        available_bytes=disk.available,
        shared_with_system=not found.own_disk,
    )
    return status, disk.fullness() >= found.limits().watermark
