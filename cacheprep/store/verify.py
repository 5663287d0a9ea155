"""Verify a published cache: quickly by size and mtime, or deeply by reading and hashing every byte.

A cache that fails loses its marker, so that nothing takes it for ready; `fetch` then keeps its good files.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import NamedTuple

from cacheprep.failures import Failure, Reason
from cacheprep.listing import File
from cacheprep.store import marker as markers
from cacheprep.store.layout import Layout
from cacheprep.store.manifest import Manifest
from cacheprep.store.publish import mark, sync_files
from cacheprep.store.remove import unmark

CHUNK = 1 << 20
"""Bytes read at a time."""
THREADS = 4


class Verdict(NamedTuple):
    """What a verification found; `problems` is empty if all is well."""

    key: str
    problems: tuple[str, ...]
    verified_at: int | None
    """Unix time in s at which every byte was hashed last."""

    @property
    def ready(self) -> bool:
        """Whether the cache is."""
        return not self.problems


def read_manifest(path: str) -> tuple[Manifest, bytes]:
    """A manifest, and its content as it lies on the disk.

    Raises:
        Failure: IntegrityMismatch if it is missing or damaged.
    """
    try:
        with open(path, "rb") as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Failure(Reason.INTEGRITY_MISMATCH, f"manifest: {path} is missing; fetch again") from error
    return Manifest.from_json(content), content


def quick(layout: Layout, key: str) -> Verdict:
    """Look at the marker, at the manifest, and at kind, size and mtime of each file; no file is read."""
    marker = markers.read(layout.ready(key))
    if marker is None:
        return Verdict(key, ("it has no marker, or a damaged one",), None)
    problems = [problem] if (problem := markers.changed(marker, layout.model(key))) else []
    try:
        manifest, content = read_manifest(layout.manifest(key))
    except Failure as failure:
        return Verdict(key, (*problems, failure.message), marker.verified_at)
    if sha256(content).hexdigest() != marker.manifest_sha256 or manifest.key != key or marker.key != key:
        problems.append("manifest, marker and key do not belong together")
    elif [(name, size) for size, _, name in marker.files] != [
        (f.name, f.size) for f in manifest.listing.files
    ]:
        problems.append("the marker has other files than the manifest")
    problems += unlisted(layout.model(key), manifest.listing.files)
    return Verdict(key, tuple(problems), marker.verified_at)


def deep(
    layout: Layout, key: str, now: Callable[[], float], read: Callable[[int], None]
) -> tuple[Verdict, Manifest | None]:
    """Hash every byte of a cache, marked or not, against its manifest.

    Args:
        layout: of the root.
        key: of the cache.
        now: Unix time, s.
        read: told how many bytes were read since the last call, from any thread; may raise to stop it.

    Returns:
        the verdict, and the manifest if there is a good one.
    """
    try:
        manifest, _ = read_manifest(layout.manifest(key))
    except Failure as failure:
        return Verdict(key, (failure.message,), None), None
    if manifest.key != key:
        return Verdict(key, (f"the manifest is of another cache, {manifest.key}",), None), None
    model = layout.model(key)
    problems = unlisted(model, manifest.listing.files)

    def check(index: int) -> str:
        file = manifest.listing.files[index]
        return _check(os.path.join(model, file.name), file, manifest.sha256[index], read)

    with ThreadPoolExecutor(THREADS, "verify") as pool:
        problems += [problem for problem in pool.map(check, range(len(manifest.listing.files))) if problem]
    return Verdict(key, tuple(problems), int(now()) if not problems else None), manifest


def settle(layout: Layout, verdict: Verdict, manifest: Manifest | None) -> None:
    """Make the marker say what a verification found: removed if it failed, fresh if all was hashed.

    The caller holds the key's fill lock.

    Args:
        layout: of the root.
        verdict: what was found.
        manifest: of a deep verification; None after a quick one.
    """
    if not verdict.ready:
        unmark(layout.cache(verdict.key))
    elif manifest is not None and verdict.verified_at is not None:
        # Whoever wrote the files since may not have synced them.
        sync_files(
            [os.path.join(layout.model(verdict.key), file.name) for file in manifest.listing.files],
            lambda _: None,
        )
        _, content = read_manifest(layout.manifest(verdict.key))
        mark(layout, manifest, content, verdict.verified_at)


def unlisted(model: str, files: tuple[File, ...]) -> list[str]:
    """What lies in a directory beside the files of a listing; symbolic links are never listed."""
    names = {file.name for file in files}
    problems = []
    for at, directories, found in os.walk(model):
        for name in found + [entry for entry in directories if os.path.islink(os.path.join(at, entry))]:
            relative = os.path.relpath(os.path.join(at, name), model)
            if relative not in names:
                problems.append(f"{relative}: is not in the manifest")
    return problems


def read_from_disk(path: str, file: File, take: Callable[[memoryview], None]) -> str:
    """Give every byte of a file to `take`, past the page cache, which says nothing of the disk.

    Returns:
        why it cannot be as listed, "" if kind and size are right and all of it could be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        return error.strerror or str(error)
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return "not a plain file"
        if found.st_size != file.size:
            return f"{found.st_size} bytes, not {file.size}"
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        buffer = memoryview(bytearray(CHUNK))
        while taken := os.readv(fd, [buffer]):
            take(buffer[:taken])
    except OSError as error:
        return error.strerror or str(error)
    finally:
        os.close(fd)
    return ""


def _check(path: str, file: File, expected: str, read: Callable[[int], None]) -> str:
    digest = sha256()

    def take(view: memoryview) -> None:
        digest.update(view)
        read(len(view))

    problem = read_from_disk(path, file, take)
    if not problem and digest.hexdigest() != expected:
        problem = f"its sha256 is not {expected}"
    return f"{file.name}: {problem}" if problem else ""
