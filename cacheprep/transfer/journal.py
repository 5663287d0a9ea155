"""The journal of a transfer: which ranges came whole, and the hash of the bytes of each.

One line per event, appended:

    range <index of the file in the listing> <start> <end> <xxh3-128 of the bytes, hex>
    drop <index>                  the file's digest was wrong: no range of it before this line counts

Nothing is synced, and nothing needs to be: a line is a claim, and counts only if the bytes on the disk
hash to what it says. A line cut by a crash, or of which the bytes never reached the disk, is a claim that
fails. The hash only has to tell bytes from what a crash leaves in their place; whether they are the right
ones, the digests say.
"""

from __future__ import annotations

import os
from threading import Lock
from typing import NamedTuple

import xxhash

from cacheprep.store.layout import FILE_MODE
from cacheprep.transfer.ranges import Range

HASH_HEX = 32


class Claim(NamedTuple):
    """A range that came whole, and the hash that its bytes had."""

    range: Range
    hash: str


def hasher() -> xxhash.xxh3_128:
    """A hasher for the bytes of a range."""
    return xxhash.xxh3_128()


def parse(text: str, sizes: list[int]) -> dict[int, list[Claim]]:
    """The claims of a journal by index of the file; lines that are none are left out. Pure.

    Args:
        text: the journal.
        sizes: of the files of the listing, bytes.
    """
    claims: dict[int, list[Claim]] = {}
    for line in text.split("\n")[:-1]:
        match line.split(" "):
            case ["range", *numbers, digest] if len(numbers) == 3 and len(digest) == HASH_HEX:
                if not all(number.isascii() and number.isdigit() for number in numbers):
                    continue
                index, start, end = map(int, numbers)
                if index < len(sizes) and start < end <= sizes[index]:
                    claims.setdefault(index, []).append(Claim(Range(start, end), digest))
            case ["drop", number] if number.isascii() and number.isdigit():
                claims.pop(int(number), None)
    return claims


class Journal:
    """A journal that is open for appending. From any thread."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, FILE_MODE)
        self._lock = Lock()
        # A line that a crash cut must not swallow the next one.
        self._append("\n")

    def read(self, sizes: list[int]) -> dict[int, list[Claim]]:
        """The claims in it, see `parse`."""
        parts = []
        at = 0
        while part := os.pread(self._fd, 1 << 20, at):
            parts.append(part)
            at += len(part)
        return parse(b"".join(parts).decode("ascii", "replace"), sizes)

    def whole(self, index: int, claim: Claim) -> None:
        """A range came whole."""
        self._append(f"range {index} {claim.range.start} {claim.range.end} {claim.hash}\n")

    def drop(self, index: int) -> None:
        """What was fetched of a file so far is wrong."""
        self._append(f"drop {index}\n")

    def close(self) -> None:
        """Close the file. What is appended afterwards is lost."""
        with self._lock:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def _append(self, line: str) -> None:
        with self._lock:
            if self._fd < 0:
                return
            try:
                os.write(self._fd, line.encode())
            except OSError:
                # A full disk: then a resume fetches this range again.
                return
