"""Adopt a published cache that is not ready: nothing of it is believed before it was hashed.

It lost its marker, or power was lost before it had one. If every file is as the manifest says, it gets a
marker; else the good files become a partial cache, and only the others are fetched.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import repeat

from cacheprep.failures import Failure
from cacheprep.listing import File
from cacheprep.store.durable import delete_tree, make_directory, move, sync_file_system, write_file
from cacheprep.store.layout import Layout
from cacheprep.store.manifest import Manifest
from cacheprep.store.publish import mark
from cacheprep.store.remove import discard, unmark
from cacheprep.store.verify import read_from_disk, read_manifest, unlisted
from cacheprep.transfer.journal import Claim, Journal, hasher
from cacheprep.transfer.ranges import Range

THREADS = 4


def adopt(
    layout: Layout,
    key: str,
    clock: Callable[[], float],
    read: Callable[[int], None],
    tell: Callable[[str], None],
) -> bool:
    """Hash a published cache without a good marker and make of it what its bytes allow.

    The caller holds the key's fill lock and, exclusively, its use lock.

    Args:
        layout: of the root.
        key: of the cache.
        clock: Unix time, s.
        read: told how many bytes were read since the last call, from any thread; may raise to stop it.
        tell: gets a sentence for each thing that is wrong.

    Returns:
        True if the cache is ready now; False if it is partial now, or gone.

    Raises:
        OSError: the disk failed.
    """
    cache = layout.cache(key)
    unmark(cache)
    try:
        manifest, content = read_manifest(layout.manifest(key))
    except Failure as failure:
        tell(f"cache {key}: {failure.message}")
        discard(layout, cache)
        return False
    if manifest.key != key:
        tell(f"cache {key}: the manifest is of another cache, {manifest.key}")
        discard(layout, cache)
        return False
    model = layout.model(key)
    files = manifest.listing.files
    with ThreadPoolExecutor(THREADS, "adopt") as pool:
        names = [os.path.join(model, file.name) for file in files]
        found = list(pool.map(_look, names, files, manifest.sha256, repeat(read)))
    wrong = [index for index, claim in enumerate(found) if claim is None]
    foreign = unlisted(model, files)
    for problem in [*(f"{files[index].name}: is not as the manifest says" for index in wrong), *foreign]:
        tell(f"cache {key}: {problem}")
    if not wrong and not foreign:
        # They are as they should be in memory, which may not be on the disk yet.
        sync_file_system(layout.root)
        mark(layout, manifest, content, int(clock()))
        return True
    _make_partial(layout, key, manifest, found)
    for problem in foreign:
        delete_tree(os.path.join(layout.future_model(key), problem.removesuffix(": is not in the manifest")))
    for index in wrong:
        # A new file, not new bytes in it: whoever has the old one open keeps what it has.
        delete_tree(os.path.join(layout.future_model(key), files[index].name))
    return False


def _make_partial(layout: Layout, key: str, manifest: Manifest, found: list[Claim | None]) -> None:
    if os.path.lexists(layout.partial(key)):
        discard(layout, layout.partial(key))
    make_directory(layout.partial(key))
    write_file(layout.listing(key), manifest.listing.to_json())
    journal = Journal(layout.journal(key))
    for index, claim in enumerate(found):
        if claim is not None and claim.range.length:
            journal.whole(index, claim)
    journal.close()
    move(layout.cache(key), layout.future(key))


def _look(path: str, file: File, expected: str, read: Callable[[int], None]) -> Claim | None:
    """The claim of a whole file that is as it should be, None of any other."""
    digest, brought = sha256(), hasher()

    def take(view: memoryview) -> None:
        digest.update(view)
        brought.update(view)
        read(len(view))

    if read_from_disk(path, file, take) or digest.hexdigest() != expected:
        return None
    return Claim(Range(0, file.size), brought.hexdigest())
