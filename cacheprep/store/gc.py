"""Delete what nobody will want: trash, and what dead processes left. Never what a living one holds."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from typing import NamedTuple

from cacheprep.store import marker as markers
from cacheprep.store.durable import delete_tree
from cacheprep.store.inventory import keys
from cacheprep.store.layout import Layout, is_key
from cacheprep.store.locks import try_lock
from cacheprep.store.remove import discard
from cacheprep.store.reservation import allocated

DEFAULT_AGE_S = 24 * 3600.0
"""A partial cache that young may be resumed yet."""
WRITE_S = 60.0
"""For so long a small file may be about to be renamed to its place."""


class Found(NamedTuple):
    """Something that went or could go, or that stays though it is not ready."""

    path: str
    bytes: int
    why: str
    """Why it went, or why it stays."""
    kept: bool = False
    """Whether it stays."""


def collect(
    layout: Layout,
    now: float,
    older_than_s: float = DEFAULT_AGE_S,
    *,
    keep: Collection[str] = (),
    dry: bool = False,
) -> Iterator[Found]:
    """Delete trash at once, and partial and unmarked caches that nobody works on once they are old.

    Args:
        layout: of the root.
        now: Unix time, s.
        older_than_s: seconds since anything in a partial or unmarked cache was last written.
        keep: keys to leave alone.
        dry: whether only to tell.

    Yields:
        what was deleted, once it is, and what of partial and unmarked caches is kept.
    """
    yield from _trash(layout, dry)
    for key in keys(layout.partials):
        if key not in keep:
            path = layout.partial(key)
            yield from _dead(layout, key, path, "left by a process that died", now, older_than_s, dry)
    for key in keys(layout.caches):
        if key not in keep and markers.read(layout.ready(key)) is None:
            path = layout.cache(key)
            yield from _dead(layout, key, path, "published without a marker", now, older_than_s, dry)
    yield from _requests(layout, now - max(older_than_s, WRITE_S), dry)
    if not dry:
        _locks(layout)


def _trash(layout: Layout, dry: bool) -> Iterator[Found]:
    for name in sorted(os.listdir(layout.trash)):
        key, dot, _ = name.partition(".")
        path = os.path.join(layout.trash, name)
        if not dot or not is_key(key):
            continue
        size = allocated(path)
        if not dry:
            delete_tree(path)
        yield Found(path, size, "removed, not yet deleted")


def _dead(
    layout: Layout, key: str, path: str, why: str, now: float, older_than_s: float, dry: bool
) -> Iterator[Found]:
    with ExitStack() as held:
        for lock in (layout.fill_lock(key), layout.use_lock(key)):
            if (mine := try_lock(lock)) is None:
                yield Found(path, allocated(path), "a process works on it", kept=True)
                return
            held.enter_context(mine)
        # Looked at under the locks: it may have become ready, or young, meanwhile.
        published = path == layout.cache(key)
        if published and markers.read(layout.ready(key)) is not None:
            return
        size, age_s = allocated(path), now - _newest(path)
        if age_s < older_than_s and not _superseded(layout, key, published):
            wait = f"last written {max(0.0, age_s) / 60:.0f} min ago; a fetch of its source goes on with it"
            yield Found(path, size, wait, kept=True)
            return
        if not dry:
            discard(layout, path)
        yield Found(path, size, why)


def _superseded(layout: Layout, key: str, published: bool) -> bool:
    return not published and markers.read(layout.ready(key)) is not None


def _newest(path: str) -> float:
    newest = 0.0
    for at, _, files in os.walk(path):
        for name in (at, *(os.path.join(at, file) for file in files)):
            try:
                newest = max(newest, os.lstat(name).st_mtime)
            except FileNotFoundError:
                continue
    return newest


def _requests(layout: Layout, before: float, dry: bool) -> Iterator[Found]:
    for name in sorted(os.listdir(layout.requests)):
        path = os.path.join(layout.requests, name)
        if name.endswith(".new"):
            if _newest(path) < before:
                if not dry:
                    delete_tree(path)
                yield Found(path, 0, "left by a process that died")
            continue
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                key = file.readline().strip()
        except OSError:
            continue
        if (
            is_key(key)
            and not os.path.lexists(layout.cache(key))
            and not os.path.lexists(layout.partial(key))
        ):
            size = os.path.getsize(path)
            if not dry:
                delete_tree(path)
            yield Found(path, size, "resolved to a cache that is gone")


def _locks(layout: Layout) -> None:
    for name in sorted(os.listdir(layout.locks)):
        key = name.partition(".")[0]
        if not is_key(key) or os.path.lexists(layout.cache(key)) or os.path.lexists(layout.partial(key)):
            continue
        held = try_lock(os.path.join(layout.locks, name), create=False)
        if held is not None:
            held.forget()
