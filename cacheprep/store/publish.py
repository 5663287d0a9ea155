"""Publish a fetched cache: everything on the disk, one rename, the marker last.

Each step relies only on what was made durable before it, so power may be lost between any two.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256

from cacheprep.store.durable import (
    delete_tree,
    move,
    sync_directories,
    sync_file,
    sync_written,
    syncfs_tells_errors,
    write_file,
)
from cacheprep.store.layout import FILE_MODE, MANIFEST, Layout
from cacheprep.store.manifest import Manifest
from cacheprep.store.marker import Marker, render
from cacheprep.store.remove import discard

MANY = 64
"""From so many files on, syncing the file system once takes less time than syncing each of them."""
SYNC_THREADS = 8
"""A journal commit of the file system then serves several files."""


def publish(
    layout: Layout, manifest: Manifest, verified_at: int, written: int, synced: Callable[[int], None]
) -> str:
    """Make `partial/<key>/cache`, every file of which was verified, the ready cache of its key.

    The caller holds the key's fill lock.

    Args:
        layout: of the root.
        manifest: what was fetched.
        verified_at: Unix time in s at which the bytes were hashed.
        written: a `durable.witness` that was opened before the files were written.
        synced: told how many files are on the disk, as it goes.

    Returns:
        the directory that an engine loads.

    Raises:
        OSError: the disk failed; nothing is ready then.
    """
    key = manifest.key
    future, cache = layout.future(key), layout.cache(key)
    content = manifest.to_json()
    write_file(os.path.join(future, MANIFEST), content)
    paths = [os.path.join(layout.future_model(key), file.name) for file in manifest.listing.files]
    if len(paths) > MANY and syncfs_tells_errors(os.uname().release):
        sync_written(written)
        synced(len(paths))
    else:
        sync_files(paths, synced)
    sync_directories(future)
    if os.path.lexists(cache):
        discard(layout, cache)
    move(future, cache)
    mark(layout, manifest, content, verified_at)
    delete_tree(layout.partial(key))
    return layout.model(key)


def mark(layout: Layout, manifest: Manifest, content: bytes, verified_at: int) -> Marker:
    """Write the marker of a cache that lies in its place, every byte of it durable and verified.

    Args:
        layout: of the root.
        manifest: of the cache.
        content: the manifest as it lies on the disk.
        verified_at: Unix time in s at which the bytes were hashed.
    """
    key = manifest.key
    model = layout.model(key)
    seen = []
    for file in manifest.listing.files:
        found = os.lstat(os.path.join(model, file.name))
        seen.append((found.st_size, found.st_mtime_ns, file.name))
    marker = Marker(key, sha256(content).hexdigest(), verified_at, tuple(seen))
    # A user of another uid can share the lock only if its file is there.
    os.close(os.open(layout.use_lock(key), os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    write_file(layout.ready(key), render(marker))
    return marker


def sync_files(paths: list[str], synced: Callable[[int], None]) -> None:
    """Make files durable, several at a time.

    Args:
        paths: the files.
        synced: told how many are, as it goes.

    Raises:
        OSError: one could not be written.
    """
    with ThreadPoolExecutor(SYNC_THREADS, "sync") as pool:
        for done, _ in enumerate(pool.map(sync_file, paths), 1):
            synced(done)
