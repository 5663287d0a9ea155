"""The marker `ready` of a published cache: what it says, and whether the files still are as it says.

Plain lines, since reading JSON would double what a warm `ensure` takes:

    warmroute-ready 1
    key <key>
    manifest <sha256 of manifest.json>
    verified <when every file was hashed last: Unix time in whole seconds>
    <size> <mtime in ns> <name>        one line per file
    end <number of files> <crc32 of all lines before, 8 hex digits>

Names hold no control characters (`listing.check_name`), so a line is a file.
"""

from __future__ import annotations

import os
import stat
import zlib

_FIRST = "warmroute-ready 1"
Seen = tuple[int, int, str]
"""Size in bytes, mtime in ns and name of a file, as they were when it was published or last verified."""


class Marker:
    """The content of a marker. No NamedTuple: importing typing takes a tenth of a warm `ensure`."""

    __slots__ = ("files", "key", "manifest_sha256", "verified_at")

    def __init__(self, key: str, manifest_sha256: str, verified_at: int, files: tuple[Seen, ...]) -> None:
        """`verified_at` is Unix time in s."""
        self.key = key
        self.manifest_sha256 = manifest_sha256
        self.verified_at = verified_at
        self.files = files

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Marker) and all(
            getattr(self, name) == getattr(other, name) for name in Marker.__slots__
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def total(self) -> int:
        """Bytes of all files."""
        return sum(size for size, _, _ in self.files)


class BadMarker(ValueError):  # noqa: N818 - says what it is
    """The text is no whole marker."""


def render(marker: Marker) -> bytes:
    """The marker as it is written."""
    lines = [
        _FIRST,
        f"key {marker.key}",
        f"manifest {marker.manifest_sha256}",
        f"verified {marker.verified_at}",
        *(f"{size} {mtime_ns} {name}" for size, mtime_ns, name in marker.files),
    ]
    body = ("\n".join(lines) + "\n").encode()
    return body + f"end {len(marker.files)} {zlib.crc32(body):08x}\n".encode()


def parse(text: bytes) -> Marker:
    """The marker that was rendered.

    Raises:
        BadMarker: for anything else, one bit of it included.
    """
    body, _, last = text[:-1].rpartition(b"\n")
    body += b"\n"
    try:
        lines = body.decode().split("\n")[:-1]
        files = tuple((int(size), int(mtime), name) for size, mtime, name in map(_three, lines[4:]))
        if text[-1:] != b"\n" or last != f"end {len(files)} {zlib.crc32(body):08x}".encode():
            raise BadMarker("the marker is cut or damaged")
        if lines[0] != _FIRST:
            raise BadMarker(f"the marker is of another format: {lines[0][:40]!r}")
        key, manifest, verified = (_after(line, word) for line, word in zip(lines[1:4], _WORDS, strict=True))
        return Marker(key, manifest, int(verified), files)
    except (UnicodeDecodeError, IndexError) as error:
        raise BadMarker("the marker is no text") from error
    except ValueError as error:
        raise error if isinstance(error, BadMarker) else BadMarker(str(error)) from error


_WORDS = ("key", "manifest", "verified")


def _after(line: str, word: str) -> str:
    found, _, value = line.partition(" ")
    if found != word:
        raise BadMarker(f"the marker has {found[:40]!r} where {word} belongs")
    return value


def _three(line: str) -> tuple[str, str, str]:
    size, mtime, name = line.split(" ", 2)
    return size, mtime, name


def read(path: str) -> Marker | None:
    """The marker at a path; None if there is none, or no whole one."""
    try:
        with open(path, "rb", buffering=0) as file:
            return parse(file.read())
    except (FileNotFoundError, NotADirectoryError, BadMarker):
        return None


def changed(marker: Marker, model: str) -> str:
    """What is not as the marker says: the first such file and why; "" if all are.

    Looks at kind, size and mtime of each file, which costs a stat and no read. `model` is the directory.
    """
    prefix = model + "/"
    for size, mtime_ns, name in marker.files:
        try:
            found = os.lstat(prefix + name)
        except OSError as error:
            return f"{name}: {error.strerror}"
        if not stat.S_ISREG(found.st_mode):
            return f"{name}: not a plain file"
        if found.st_size != size:
            return f"{name}: {found.st_size} bytes, not {size}"
        if found.st_mtime_ns != mtime_ns:
            return f"{name}: modified since it was verified"
    return ""
