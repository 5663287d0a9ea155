"""Remove caches, never one that is in use or being fetched."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from cacheprep.failures import Failure, Reason
from cacheprep.store.durable import delete_tree, move, unlink
from cacheprep.store.layout import MODEL, READY, Layout
from cacheprep.store.locks import Lock, try_lock


def remove(layout: Layout, key: str) -> bool:
    """Remove a cache, published or being fetched, and its files; False if there was none.

    Raises:
        Failure: InvalidRequest if it is in use or being fetched.
        OSError: the disk refused.
    """
    with alone(layout, key) as (fill, use):
        there = False
        cache, partial = layout.cache(key), layout.partial(key)
        if os.path.lexists(cache):
            discard(layout, cache)
            there = True
        if os.path.lexists(partial):
            discard(layout, partial)
            there = True
        use.forget()
        fill.forget()
    return there


@contextmanager
def alone(layout: Layout, key: str) -> Iterator[tuple[Lock, Lock]]:
    """Hold the fill lock and the use lock of a key, so that nobody fetches or uses it.

    Raises:
        Failure: InvalidRequest if somebody does.
    """
    with ExitStack() as held:
        fill = try_lock(layout.fill_lock(key))
        if fill is None:
            raise Failure(
                Reason.INVALID_REQUEST, f"cache {key}: is being fetched or removed; wait for it or stop it"
            )
        held.enter_context(fill)
        use = try_lock(layout.use_lock(key))
        if use is None:
            raise Failure(Reason.INVALID_REQUEST, f"cache {key}: is in use; stop what uses it first")
        held.enter_context(use)
        yield fill, use


def discard(layout: Layout, directory: str) -> None:
    """Take a directory out of its place at once, marker first, then delete it.

    The caller holds the locks. If the process dies on the way, `gc` deletes the rest.
    """
    unmark(directory)
    target = os.path.join(layout.trash, f"{os.path.basename(directory)}.{secrets.token_hex(6)}")
    move(directory, target)
    delete_tree(target)


def unmark(cache: str) -> bool:
    """Remove the marker of a published directory, durably; False if there was none."""
    return os.path.isdir(os.path.join(cache, MODEL)) and unlink(os.path.join(cache, READY))
