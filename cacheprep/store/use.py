"""Use of a cache, which keeps it from being removed. Imports nothing slow: `ensure` needs it."""

from __future__ import annotations

import os

from cacheprep.store import marker as markers
from cacheprep.store.layout import Layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cacheprep.store.locks import Lock


def ready(layout: Layout, key: str) -> bool:
    """Whether a cache is: a good marker, and size and mtime of each file as it says."""
    marker = markers.read(layout.ready(key))
    return marker is not None and marker.key == key and not markers.changed(marker, layout.model(key))


def touch(layout: Layout, key: str) -> None:
    """Remember that a cache was asked for now; only the store's own user can."""
    try:
        os.utime(layout.use_lock(key))
    except OSError:
        return


def hold(layout: Layout, key: str) -> Lock:
    """Hold a ready cache in use until the lock is released, or inherited by a command that ends.

    Raises:
        Failure: InvalidRequest if it is not ready or is being removed; AccessDenied if its lock may not
            be read.
    """
    from cacheprep.failures import Failure, Reason
    from cacheprep.store.locks import try_lock

    try:
        held = try_lock(layout.use_lock(key), shared=True, create=False)
    except OSError as error:
        raise Failure(Reason.ACCESS_DENIED, f"cache {key}: {error.strerror} ({error.filename})") from error
    # After the lock is held: from here on nobody removes it.
    if held is None or not ready(layout, key):
        if held is not None:
            held.release()
        raise Failure(Reason.INVALID_REQUEST, f"cache {key}: is not ready; `cacheprep ls` shows what is")
    touch(layout, key)
    return held
