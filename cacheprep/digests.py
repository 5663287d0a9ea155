"""Compute the digests that a listing can name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Protocol

from cacheprep.listing import Digest

Buffer = bytes | bytearray | memoryview


class Hasher(Protocol):
    """A digest over bytes that come in order."""

    def update(self, data: Buffer, /) -> None:
        """Take the next bytes."""

    def hexdigest(self) -> str:
        """The digest of what came so far, lower-case hex as in `Digest.value`."""


def hasher(digest: Digest, size: int) -> Hasher:
    """A hasher for the algorithm of `digest` and a file of `size` bytes; see `Digest` for the algorithms.

    Raises ValueError for an algorithm that no `Listing` takes.
    """
    kind, _, part = digest.algorithm.partition(":")
    if part:
        return _InParts(_plain(kind), int(part))
    if kind == "git-blob-sha1":
        blob = hashlib.sha1(usedforsecurity=False)
        blob.update(b"blob %d\0" % size)  # git-hash-object(1); Pro Git, "Git Objects"
        return blob
    return _plain(kind)()


def _plain(kind: str) -> Callable[[], Hasher]:
    if kind == "sha256":
        return hashlib.sha256
    if kind in ("crc64nvme", "crc32c", "crc32"):
        from awscrt import checksums

        function = getattr(checksums, kind)
        return lambda: _Crc(function, 8 if kind == "crc64nvme" else 4)
    raise ValueError(f"digest algorithm {kind!r} is not known here")


class _Crc:
    def __init__(self, function: Callable[[Buffer, int], int], width: int) -> None:
        self._function, self._width, self._value = function, width, 0

    def update(self, data: Buffer, /) -> None:
        self._value = self._function(data, self._value)

    def hexdigest(self) -> str:
        return self._value.to_bytes(self._width, "big").hex()


class _InParts:
    """The digest of the parts' digests, each part `part` bytes but the last."""

    def __init__(self, plain: Callable[[], Hasher], part: int) -> None:
        self._plain, self._part = plain, part
        self._finished, self._current, self._filled = bytearray(), plain(), 0

    def update(self, data: Buffer, /) -> None:
        view = memoryview(data)
        while len(view):
            if self._filled == self._part:
                self._finished += bytes.fromhex(self._current.hexdigest())
                self._current, self._filled = self._plain(), 0
            taken = view[: self._part - self._filled]
            self._current.update(taken)
            self._filled += len(taken)
            view = view[len(taken) :]

    def hexdigest(self) -> str:
        whole = self._plain()
        whole.update(self._finished + bytes.fromhex(self._current.hexdigest()))
        return whole.hexdigest()
