"""What a request was last resolved to, so that a warm `ensure` asks no source. Imports nothing slow."""

from __future__ import annotations

import zlib

from cacheprep.store.layout import KEY_LENGTH, Layout, is_key


def recall(layout: Layout, request: bytes) -> str | None:
    """The key that a request was last resolved to, if that is known.

    Args:
        layout: of the root.
        request: the source's URL and everything that changes what it resolves to.
    """
    try:
        with open(_path(layout, request), "rb", buffering=0) as file:
            content = file.read()
    except OSError:
        return None
    key = content[:KEY_LENGTH].decode("ascii", "replace")
    return key if is_key(key) and content[KEY_LENGTH:] == b"\n" + request else None


def remember(layout: Layout, request: bytes, key: str) -> None:
    """Remember the key of a request, if the disk has room for that."""
    from cacheprep.store.durable import write_file

    if recall(layout, request) != key:
        try:
            write_file(_path(layout, request), f"{key}\n".encode() + request, locked=False)
        except OSError:
            # On a disk that is full the source is asked again next time.
            return


def _path(layout: Layout, request: bytes) -> str:
    # Two checksums, since importing hashlib would take longer than all else here. Requests that share them
    # share a file, and `recall` takes the one that is not in it for unknown.
    return layout.request(f"{zlib.crc32(request):08x}{zlib.adler32(request):08x}")
