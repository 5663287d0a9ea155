"""Objects of one kind as they are followed, and what of them has changed.

A watch tells of objects, not of differences: kubelet writes each node every few minutes, and what is read of
it stays the same. Told is what differs only, a list read anew after a gap included: what has vanished
meanwhile is told as gone. (kopf, the usual framework, lists anew without saying what has vanished, so that a
local view of the cluster keeps it for ever: `kopf._cogs.clients.watching.continuous_watch` of 1.45.)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Generic, TypeVar

from cacheprep.objects import Json
from extproc.pool.discovery.kubernetes import Listing

T = TypeVar("T")


class Index(Generic[T]):
    """The objects of a listing.

    Args:
        listing: which objects, and what is read of them. What is read must compare by value.
        told: called with what was there before and what is there now; None stands for nothing.
    """

    def __init__(self, listing: Listing[T], told: Callable[[T | None, T | None], None]) -> None:
        self._told = told
        self._read = listing.read
        self._fresh: dict[str, T] = {}
        self._objects: dict[str, T] = {}
        self._values: tuple[T, ...] | None = None
        self.synced = False
        """Whether the objects are known."""
        self.listing: Listing[T] = listing._replace(read=self._noting)

    @property
    def values(self) -> tuple[T, ...]:
        """All of them; the same tuple until something changes."""
        if self._values is None:
            self._values = tuple(self._objects.values())
        return self._values

    def take(self, objects: Mapping[str, T]) -> None:
        """The objects by uid are these now; what was read since the last call is what may have changed."""
        first, self.synced = not self.synced, True
        fresh, self._fresh = self._fresh, {}
        for uid, new in fresh.items():
            if uid in objects:
                self._change(uid, new)
        if len(objects) != len(self._objects):
            for uid in self._objects.keys() - objects.keys():
                self._change(uid, None)
        if first:
            self._told(None, None)

    def _change(self, uid: str, new: T | None) -> None:
        old = self._objects.get(uid)
        if old == new:
            return
        if new is None:
            del self._objects[uid]
        else:
            self._objects[uid] = new
        self._values = None
        self._told(old, new)

    def _noting(self, item: Json) -> T:
        read = self._read(item)
        self._fresh[item["metadata"]["uid"]] = read
        return read
