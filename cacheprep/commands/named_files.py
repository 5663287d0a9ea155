"""Files that are named on a command line: a saved listing, the manifest of another node."""

from __future__ import annotations

import os
import re
import sys
import zlib

from cacheprep.failures import Failure, Reason
from cacheprep.listing import MAX_JSON_BYTES, Listing
from cacheprep.store.manifest import Manifest

_PART = re.compile(r"part-\d{4}\.gz")


def saved_listing(path: str | None) -> Listing | None:
    """The listing in a file, or in a directory in parts; None if none is named.

    Raises:
        Failure: InvalidRequest that names what was given, and what is wrong with it.
    """
    if path is None:
        return None
    text = _joined(path) if os.path.isdir(path) else _read(path, "--listing")
    try:
        return Listing.from_json(text)
    except Failure as failure:
        said = failure.message.removeprefix("listing: ")
        raise Failure(failure.reason, f"--listing {path}: {said}") from failure


def _joined(directory: str) -> bytes:
    """A listing that lies in parts, as ConfigMaps have it: compressed as one, and cut."""
    names = sorted(name for name in os.listdir(directory) if _PART.fullmatch(name))
    if not names:
        raise Failure(
            Reason.INVALID_REQUEST, f"--listing {directory}: has no part-0000.gz; are its ConfigMaps there?"
        )
    packed = b"".join(_read(os.path.join(directory, name), "--listing") for name in names)
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        text = unpacking.decompress(packed, MAX_JSON_BYTES + 1)
    except zlib.error as error:
        raise Failure(
            Reason.INVALID_REQUEST, f"--listing {directory}: {error}; list the source anew"
        ) from None
    if not unpacking.eof and len(text) <= MAX_JSON_BYTES:
        raise Failure(Reason.INVALID_REQUEST, f"--listing {directory}: a part is missing after {names[-1]}")
    return text


def expected_digests(path: str | None) -> dict[str, str] | None:
    """The SHA-256 of each file by its name, as a manifest has them; None if none is named.

    Raises:
        Failure: InvalidRequest that names what was given, and what is wrong with it.
    """
    if path is None:
        return None
    text = _read(path, "--manifest")
    try:
        manifest = Manifest.from_json(text)
    except Failure as failure:
        # Of a file in the store that would be damage; this one was named by whoever called.
        raise Failure(
            Reason.INVALID_REQUEST,
            f"--manifest {path}: is none ({failure.__cause__}); name manifest.json of a cache that is ready",
        ) from failure
    return {file.name: sha for file, sha in zip(manifest.listing.files, manifest.sha256, strict=True)}


def _read(path: str, option: str) -> bytes:
    try:
        if path == "-":
            return sys.stdin.buffer.read()
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Failure(Reason.INVALID_REQUEST, f"{option} {path}: {error.strerror}") from error
