"""Fill a cache: from a listing and its source to a ready cache, whatever an earlier run left of it.

The one place where store, transfer and source meet. `store/layout.py` has the states that it goes through.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import NamedTuple
from urllib.parse import urlsplit

from cacheprep.adopting import adopt
from cacheprep.failures import Failure, Reason
from cacheprep.listing import Listing
from cacheprep.sources.source import Source
from cacheprep.store import evict, gc, mounts
from cacheprep.store.capacity import Limits
from cacheprep.store.durable import make_directory, witness, write_file
from cacheprep.store.layout import Layout, key_of
from cacheprep.store.locks import Lock, lock, try_lock
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
    source: Callable[[], Source],
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
        source: opens where it comes from; called only if bytes are lacking.
        plan: how.
        edge: clock, chance, cancellation of the transfer.
        counters: counts what happens.
        tell: gets a sentence where a person would want one.
        clock: Unix time, s.
        request: what the listing was asked for with, remembered for `ensure`; empty for none.

    Raises:
        Failure: any reason; the cache is not ready then, unless it was before.
    """
    layout = root.layout
    key = key_of(listing.digest())
    counters.set(bytes_total=listing.total, files_total=len(listing.files))
    wait = waiter(edge)
    try:
        filled = None if not ready(layout, key) else Filled(key, layout.model(key), "found")
        if filled is None:
            with lock(layout.fill_lock(key), wait, waiting=lambda: _wait_for(key, counters, tell)):
                filled = _filled(layout, key, listing, source, plan, edge, counters, tell, clock)
        if filled.how != "fetched" and plan.expected is not None:
            manifest, _ = read_manifest(layout.manifest(key))
            _compare(listing, list(manifest.sha256), plan.expected)
        if request:
            remember(layout, request, key)
        touch(layout, key)
    except OSError as error:
        raise os_failure(error, f"cache {key}") from error
    counters.set(
        phase=Phase.DONE,
        bytes_done=listing.total,
        files_done=len(listing.files),
        files_synced=len(listing.files),
    )
    return filled


def waiter(edge: Edge) -> Callable[[float], None]:
    """Sleeps for seconds; raises Failure(Canceled) once that is wanted."""

    def wait(seconds: float) -> None:
        if edge.canceled.wait(seconds):
            raise Failure(Reason.CANCELED, "stopped while waiting for another process")

    return wait


def _wait_for(key: str, counters: Counters, tell: Tell) -> None:
    counters.set(phase=Phase.WAITING)
    tell(f"another process works on cache {key}; waiting for it")


def _filled(
    layout: Layout,
    key: str,
    listing: Listing,
    source: Callable[[], Source],
    plan: Plan,
    edge: Edge,
    counters: Counters,
    tell: Tell,
    clock: Callable[[], float],
) -> Filled:
    if ready(layout, key):
        return Filled(key, layout.model(key), "found")
    if os.path.lexists(layout.cache(key)) and _adopted(layout, key, edge, counters, tell, clock):
        return Filled(key, layout.model(key), "adopted")
    _begin(layout, key, listing)
    wait = waiter(edge)
    with (
        witness(layout.partial(key)) as written,
        _turn(layout, listing.source, plan.downloads_per_source, wait, counters, tell),
    ):
        _reserve(layout, key, listing, plan, wait, tell, clock)
        opened = source()
        try:
            journal = Journal(layout.journal(key))
            try:
                found = transfer(
                    opened, listing, layout.future_model(key), journal, plan.settings, edge, counters
                )
            finally:
                journal.close()
        finally:
            opened.close()
        _compare(listing, found, plan.expected)
        counters.set(phase=Phase.SYNCING)
        manifest = Manifest(listing, tuple(found))
        path = publish(
            layout, manifest, int(clock()), written, lambda count: counters.set(files_synced=count)
        )
    return Filled(key, path, "fetched")


def _adopted(
    layout: Layout, key: str, edge: Edge, counters: Counters, tell: Tell, clock: Callable[[], float]
) -> bool:
    """Whether a published cache that is not ready could be made so."""
    tell(f"cache {key} is there without a good marker: hashing it")
    counters.set(phase=Phase.CHECKING)

    def read(_: int) -> None:
        if edge.canceled.is_set():
            raise Failure(Reason.CANCELED, "stopped while hashing what is there")

    use = try_lock(layout.use_lock(key))
    if use is None:
        raise Failure(Reason.INVALID_REQUEST, f"cache {key}: is damaged and in use; stop what uses it first")
    with use:
        return adopt(layout, key, clock, read, tell)


def _begin(layout: Layout, key: str, listing: Listing) -> None:
    """Make the directory of a partial cache, or keep the one that an earlier run left."""
    make_directory(layout.partial(key))
    content = listing.to_json()
    try:
        with open(layout.listing(key), "rb") as file:
            same = file.read() == content
    except FileNotFoundError:
        same = False
    if not same:
        write_file(layout.listing(key), content)
    make_directory(layout.future_model(key))


def _reserve(
    layout: Layout,
    key: str,
    listing: Listing,
    plan: Plan,
    wait: Callable[[float], None],
    tell: Tell,
    clock: Callable[[], float],
) -> None:
    def make_room(lacking: int) -> int:
        """Dead partial caches first, since nobody uses them, then what the policy lets go."""
        if plan.policy is evict.Policy.NONE:
            return 0
        freed = 0
        for found in gc.collect(layout, clock(), 0.0, keep={key, *plan.keep}):
            if not found.kept:
                tell(f"removed {found.path}: {found.why}")
                freed += found.bytes
        if freed < lacking:
            for entry in evict.evict(layout, lacking - freed, clock(), keep={key, *plan.keep}):
                tell(f"evicted cache {entry.key} ({entry.source}), {entry.allocated} bytes")
                freed += entry.allocated
        return freed

    mount = mounts.mount_of(layout.root, mounts.read())
    pieces = [Piece(file.name, file.size) for file in listing.files]
    try:
        reserve(
            layout,
            key,
            pieces,
            plan.limits,
            wait,
            make_room=make_room,
            shows_late=mount is not None and mount.kind in SHOWS_LATE,
        )
    except Failure:
        if not os.path.exists(layout.journal(key)):
            # Nothing was fetched: leave nothing.
            discard(layout, layout.partial(key))
        raise


@contextmanager
def _turn(
    layout: Layout, source: str, slots: int, wait: Callable[[float], None], counters: Counters, tell: Tell
) -> Iterator[Lock]:
    """Hold one of the turns at a source."""
    split = urlsplit(source)
    name = sha256(f"{split.scheme}://{split.netloc}".encode()).hexdigest()[:16]
    told = False
    pause = 0.02
    while True:
        for slot in range(slots):
            held = try_lock(layout.source_lock(name, slot))
            if held is not None:
                with held:
                    yield held
                return
        if not told:
            told = True
            counters.set(phase=Phase.WAITING)
            tell(f"{slots} caches are being fetched from {split.scheme}://{split.netloc}; waiting for a turn")
        wait(pause)
        pause = min(2 * pause, 0.5)


def _compare(listing: Listing, found: list[str], expected: dict[str, str] | None) -> None:
    for file, sha in zip(listing.files, found, strict=True):
        wanted = sha if expected is None else expected.get(file.name)
        if sha != wanted:
            raise Failure(
                Reason.INTEGRITY_MISMATCH,
                f"file {file.name!r}: sha256 is {sha}, the node that read it first found {wanted}",
            )
