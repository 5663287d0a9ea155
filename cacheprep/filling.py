"""Fill a cache: from a listing and its source to a ready cache, whatever an earlier run left of it.

The one place where store, transfer and source meet. `store/layout.py` has the states that it goes through.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import closing, contextmanager
from functools import partial
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import urlsplit

from cacheprep.adopting import adopt
from cacheprep.failures import Failure, Reason
from cacheprep.listing import Listing
from cacheprep.progress import noting
from cacheprep.sources.source import Source
from cacheprep.store import evict, gc, mounts, progress
from cacheprep.store.capacity import Limits
from cacheprep.store.durable import make_directory, witness, write_file
from cacheprep.store.layout import Layout, key_of
from cacheprep.store.locks import FIRST_WAIT_S, LONGEST_WAIT_S, Lock, lock, try_lock
from cacheprep.store.manifest import Manifest
from cacheprep.store.publish import publish
from cacheprep.store.remove import discard
from cacheprep.store.requests import remember
from cacheprep.store.reservation import SHOWS_LATE, Piece, reserve
from cacheprep.store.root import Root, os_failure
from cacheprep.store.use import ready, touch
from cacheprep.store.verify import read_manifest
from cacheprep.transfer.counters import Counters, Phase
from cacheprep.transfer.engine import Edge, Settings, transfer
from cacheprep.transfer.journal import Journal

Tell = Callable[[str], None]
"""Gets a sentence on what happens, for whoever watches."""


class Plan(NamedTuple):
    """How a cache is filled."""

    limits: Limits
    settings: Settings = Settings()
    policy: evict.Policy = evict.Policy.NONE
    keep: Collection[str] = ()
    """Keys that must not be evicted beside those in use."""
    downloads_per_source: int = 4
    """Caches that are fetched from one source at once, on this root."""
    expected: dict[str, str] | None = None
    """sha256 by file name that an earlier reader found, where the source has no digests; None if unknown."""


class Filled(NamedTuple):
    """A ready cache."""

    key: str
    path: str
    """The directory that an engine loads."""
    how: str
    """`found` ready, `adopted`, or `fetched`."""


def fill(
    root: Root,
    listing: Listing,
    source: Source,
    plan: Plan,
    edge: Edge,
    counters: Counters,
    tell: Tell,
    *,
    clock: Callable[[], float] = time.time,
    request: bytes = b"",
) -> Filled:
    """Make the cache of a listing ready, once, whoever else wants it at the same time.

    Args:
        root: where.
        listing: what.
        source: where it comes from; asked only if bytes are lacking.
        plan: how.
        edge: clock, chance, cancellation of the transfer.
        counters: counts what happens.
        tell: gets a sentence where a person would want one.
        clock: Unix time, s.
        request: what the listing was asked for with, remembered for `ensure`; empty for none.

    Raises:
        Failure: any reason; the cache is not ready then, unless it was before.
    """
    filling = _Filling(root.layout, listing, source, plan, edge, counters, tell, clock)
    try:
        filled = filling.run()
        if request:
            remember(root.layout, request, filled.key)
        touch(root.layout, filled.key)
    except OSError as error:
        raise os_failure(error, f"cache {filling.key}") from error
    return filled


class _Filling:
    """One filling, with all that it needs."""

    def __init__(
        self,
        layout: Layout,
        listing: Listing,
        source: Source,
        plan: Plan,
        edge: Edge,
        counters: Counters,
        tell: Tell,
        clock: Callable[[], float],
    ) -> None:
        self.key = key_of(listing.digest())
        self._layout, self._listing, self._source, self._plan = layout, listing, source, plan
        self._edge, self._counters, self._tell, self._clock = edge, counters, tell, clock

    def run(self) -> Filled:
        layout, listing, key = self._layout, self._listing, self.key
        self._counters.set(bytes_total=listing.total, files_total=len(listing.files))
        if ready(layout, key):
            how = "found"
        else:
            with lock(layout.fill_lock(key), self._wait, waiting=self._waits_for_another):
                how = self._made_ready()
        if how != "fetched" and self._plan.expected is not None:
            manifest, _ = read_manifest(layout.manifest(key))
            _compare(listing, list(manifest.sha256), self._plan.expected)
        self._counters.set(
            phase=Phase.DONE,
            bytes_done=listing.total,
            files_done=len(listing.files),
            files_synced=len(listing.files),
        )
        return Filled(key, layout.model(key), how)

    def _wait(self, seconds: float) -> None:
        if self._edge.canceled.wait(seconds):
            raise Failure(Reason.CANCELED, "stopped while waiting for another process")

    def _waits_for_another(self) -> None:
        self._counters.set(phase=Phase.WAITING)
        self._tell(f"another process works on cache {self.key}; waiting for it")

    def _made_ready(self) -> str:
        """Make the cache ready, with its lock held; returns how."""
        if ready(self._layout, self.key):
            return "found"
        if os.path.lexists(self._layout.cache(self.key)) and self._adopted():
            return "adopted"
        self._fetch()
        return "fetched"

    def _adopted(self) -> bool:
        """Whether a published cache that is not ready could be made so."""
        key = self.key
        self._tell(f"cache {key} is there without a good marker: hashing it")
        self._counters.set(phase=Phase.CHECKING)

        def read(_: int) -> None:
            if self._edge.canceled.is_set():
                raise Failure(Reason.CANCELED, "stopped while hashing what is there")

        use = try_lock(self._layout.use_lock(key))
        if use is None:
            raise Failure(
                Reason.INVALID_REQUEST, f"cache {key}: is damaged and in use; stop what uses it first"
            )
        with use:
            return adopt(self._layout, key, self._clock, read, self._tell)

    def _fetch(self) -> None:
        layout, key = self._layout, self.key
        self._begin()
        with witness(layout.partial(key)) as written, self._turn():
            # Until it is published: then the directory goes in which it is noted.
            with noting(self._counters, partial(progress.write, layout, key)):
                self._reserve()
                found = self._transfer()
            _compare(self._listing, found, self._plan.expected)
            self._counters.set(phase=Phase.SYNCING)
            publish(
                layout,
                Manifest(self._listing, tuple(found)),
                int(self._clock()),
                written,
                lambda count: self._counters.set(files_synced=count),
            )

    def _transfer(self) -> list[str]:
        try:
            with closing(Journal(self._layout.journal(self.key))) as journal:
                return transfer(
                    self._source,
                    self._listing,
                    self._layout.future_model(self.key),
                    journal,
                    self._plan.settings,
                    self._edge,
                    self._counters,
                )
        except Failure as failure:
            if failure.reason is not Reason.SOURCE_UNAVAILABLE:
                raise
            said = f"{failure.message}; what has come is kept: fetch again when the source answers"
            raise Failure(failure.reason, said, failure.retry_after_s) from failure

    def _begin(self) -> None:
        """Make the directory of a partial cache, or keep the one that an earlier run left."""
        path = self._layout.listing(self.key)
        make_directory(self._layout.partial(self.key))
        progress.forget(self._layout, self.key)
        content = self._listing.to_json()
        try:
            with open(path, "rb") as file:
                same = file.read() == content
        except FileNotFoundError:
            same = False
        if not same:
            write_file(path, content)
        make_directory(self._layout.future_model(self.key))

    @contextmanager
    def _turn(self) -> Iterator[Lock]:
        """Hold one of the turns at a source."""
        split = urlsplit(self._listing.source)
        origin = f"{split.scheme}://{split.netloc}"
        name = sha256(origin.encode()).hexdigest()[:16]
        turns = self._plan.downloads_per_source
        told = False
        pause = FIRST_WAIT_S
        while True:
            for slot in range(turns):
                held = try_lock(self._layout.source_lock(name, slot))
                if held is not None:
                    with held:
                        yield held
                    return
            if not told:
                told = True
                self._counters.set(phase=Phase.WAITING)
                self._tell(f"{turns} caches are being fetched from {origin}; waiting for a turn")
            self._wait(pause)
            pause = min(2 * pause, LONGEST_WAIT_S)

    def _reserve(self) -> None:
        layout, key = self._layout, self.key
        mount = mounts.mount_of(layout.root, mounts.read())
        try:
            reserve(
                layout,
                key,
                [Piece(file.name, file.size) for file in self._listing.files],
                self._plan.limits,
                self._wait,
                make_room=self._make_room,
                shows_late=mount is not None and mount.kind in SHOWS_LATE,
            )
        except Failure:
            if not os.path.exists(layout.journal(key)):
                # Nothing was fetched: leave nothing.
                discard(layout, layout.partial(key))
            raise

    def _make_room(self, lacking: int) -> int:
        """Remove dead partial caches first, since nobody uses them, then what the policy lets go."""
        if self._plan.policy is evict.Policy.NONE:
            return 0
        keep = {self.key, *self._plan.keep}
        freed = 0
        for found in gc.collect(self._layout, self._clock(), 0.0, keep=keep):
            if not found.kept:
                self._tell(f"removed {found.path}: {found.why}")
                freed += found.bytes
        if freed < lacking:
            for entry in evict.evict(self._layout, lacking - freed, self._clock(), keep=keep):
                self._tell(f"evicted cache {entry.key} ({entry.source}), {entry.allocated} bytes")
                freed += entry.allocated
        return freed


def _compare(listing: Listing, found: list[str], expected: dict[str, str] | None) -> None:
    for file, sha in zip(listing.files, found, strict=True):
        wanted = sha if expected is None else expected.get(file.name)
        if sha != wanted:
            raise Failure(
                Reason.INTEGRITY_MISMATCH,
                f"file {file.name!r}: sha256 is {sha}, the node that read it first found {wanted}",
            )
