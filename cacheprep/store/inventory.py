"""What a cache root holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple

from cacheprep.failures import Failure
from cacheprep.listing import Listing
from cacheprep.store import marker as markers
from cacheprep.store import progress
from cacheprep.store.layout import Layout, State, is_key
from cacheprep.store.locks import is_held
from cacheprep.store.reservation import allocated
from cacheprep.store.verify import read_manifest
from cacheprep.transfer import journal
from cacheprep.transfer.ranges import gaps


class Entry(NamedTuple):
    """A cache as it is at this moment."""

    key: str
    state: State
    source: str
    """URL that its listing was made from; "" if that cannot be read."""
    revision: str
    verification: str
    """`source-digest` or `first-read`; "" where there is no manifest yet."""
    bytes: int
    """Of all files when whole."""
    bytes_done: int
    """Of those, all of a ready cache; of a partial one what came whole, as its journal says, and while a
    process fetches it what that says is on its way; none of an unmarked one, which has to be hashed."""
    allocated: int
    """Bytes that it takes on the disk."""
    files: int
    verified_at: int | None
    """Unix time in s at which every byte was hashed last."""
    used_at: int | None
    """Unix time in s at which somebody last asked for it."""
    in_use: bool
    """Whether `cacheprep run` or another holder of its use lock runs now."""
    busy: bool
    """Whether a process fetches, verifies or removes it now."""
    path: str
    """The directory that an engine loads; "" unless ready."""
    problem: str
    """Why a published cache is not ready; "" otherwise."""
    bytes_per_second: int | None = None
    """How fast it is being fetched; None if no process fetches it."""

    @property
    def ready(self) -> bool:
        """Whether an engine may load it: its marker is good, and size and mtime of each file are as it
        says."""
        return self.state is State.READY


def inventory(layout: Layout) -> list[Entry]:
    """Every cache, published or being fetched, sorted by key."""
    found = {key: entry for key in keys(layout.partials) if (entry := _partial(layout, key))}
    found |= {key: entry for key in keys(layout.caches) if (entry := _published(layout, key))}
    return [found[key] for key in sorted(found)]


def entry_of(layout: Layout, key: str) -> Entry | None:
    """The cache of a key, None if it is absent."""
    return _published(layout, key) or _partial(layout, key)


def keys(directory: str) -> Iterator[str]:
    """The keys in `caches/` or `partial/`; other names there are left out, they are not ours."""
    try:
        names = sorted(os.listdir(directory))
    except FileNotFoundError:
        return
    yield from filter(is_key, names)


def used_at(layout: Layout, key: str) -> int | None:
    """Unix time in s at which a cache was last asked for."""
    try:
        return int(os.stat(layout.use_lock(key)).st_mtime)
    except FileNotFoundError:
        return None


def _published(layout: Layout, key: str) -> Entry | None:
    if not os.path.isdir(layout.cache(key)):
        return None
    problem, listing, verification = "", None, ""
    try:
        manifest, _ = read_manifest(layout.manifest(key))
        listing, verification = manifest.listing, manifest.verification.value
    except Failure as failure:
        problem = failure.message
    marker = markers.read(layout.ready(key))
    if marker is None:
        problem = problem or "it has no marker; `cacheprep fetch` of the same source adopts it"
    else:
        problem = problem or markers.changed(marker, layout.model(key))
    return Entry(
        key=key,
        state=State.UNMARKED if problem else State.READY,
        source=listing.source if listing else "",
        revision=listing.revision if listing else "",
        verification=verification,
        bytes=listing.total if listing else 0,
        bytes_done=listing.total if listing and not problem else 0,
        allocated=allocated(layout.cache(key)),
        files=len(listing.files) if listing else 0,
        verified_at=marker.verified_at if marker else None,
        used_at=used_at(layout, key),
        in_use=is_held(layout.use_lock(key)),
        busy=is_held(layout.fill_lock(key)),
        path="" if problem else layout.model(key),
        problem=problem,
    )


def _partial(layout: Layout, key: str) -> Entry | None:
    if not os.path.isdir(layout.partial(key)):
        return None
    try:
        with open(layout.listing(key), "rb") as file:
            listing: Listing | None = Listing.from_json(file.read())
    except (FileNotFoundError, Failure):
        listing = None
    busy = is_held(layout.fill_lock(key))
    told = progress.read(layout, key) if busy else None
    done = _claimed(layout, key, listing) if listing else 0
    if listing and told is not None:
        # Each knows something that the other does not: ranges on their way, and the last few seconds.
        done = max(done, min(told.bytes_done, listing.total))
    return Entry(
        key=key,
        state=State.PARTIAL,
        source=listing.source if listing else "",
        revision=listing.revision if listing else "",
        verification="",
        bytes=listing.total if listing else 0,
        bytes_done=done,
        allocated=allocated(layout.partial(key)),
        files=len(listing.files) if listing else 0,
        verified_at=None,
        used_at=None,
        in_use=False,
        busy=busy,
        path="",
        problem="",
        bytes_per_second=None if told is None else told.bytes_per_second,
    )


def _claimed(layout: Layout, key: str, listing: Listing) -> int:
    """Bytes in ranges that came whole."""
    sizes = [file.size for file in listing.files]
    try:
        with open(layout.journal(key), encoding="ascii", errors="replace") as lines:
            claims = journal.parse(lines.read(), sizes)
    except FileNotFoundError:
        return 0
    missing = (gaps(sizes[index], [claim.range for claim in found]) for index, found in claims.items())
    return sum(sizes[index] for index in claims) - sum(gap.length for of_file in missing for gap in of_file)
