"""A mounted file system: FSx for Lustre, NFS, a persistent volume, or any directory.

No digest is known before the first read, so such a cache is `first-read`. A change is noticed by size, time
of modification and inode, before and after each range.

Symbolic links are refused, everywhere below the root: what one points to can change between two looks, and
what lies outside was not asked for. The root itself may be reached through links.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar
from urllib.parse import unquote, urlsplit

from cacheprep.failures import Failure, Reason
from cacheprep.listing import MAX_FILES, Digest, File, Listing
from cacheprep.sources.options import SourceOptions
from cacheprep.sources.source import Body

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO that took a file's place must not hang us.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class FilesSource:
    """`/path` or `file:///path` of a directory, or of one file."""

    TAKES: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, url: str, options: SourceOptions) -> None:
        path = _path(url)
        self.url = f"file://{path}"
        self._path, self._options = path, options

    def resolve(self) -> Listing:
        """List every regular file below the path, of any depth."""
        try:
            if stat.S_ISREG(os.stat(self._path).st_mode):
                files = [self._file(os.path.basename(self._path))]
            else:
                files = list(self._walk())
        except OSError as error:
            raise self.failure(error, self._path) from error
        return self._options.listing(self.url, "", files)

    @contextmanager
    def open(self, file: File, start: int, end: int) -> Iterator[Body]:
        """Bytes [start, end), read by preadv(2)."""
        try:
            descriptor = self._open(file.name)
        except OSError as error:
            raise self.failure(error, file.name, listed=True) from error
        try:
            self.check(descriptor, file)
            yield _Range(self, descriptor, file, start, end)
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Nothing is held."""

    def check(self, descriptor: int, file: File) -> None:
        """Raise Failure(SourceChanged) if an open file is not the one that was listed."""
        try:
            found = os.fstat(descriptor)
        except OSError as error:
            raise self.failure(error, file.name, listed=True) from error
        if not stat.S_ISREG(found.st_mode):
            raise _changed(file.name, "is no longer a plain file")
        if _version(found) != file.version or found.st_size != file.size:
            raise _changed(file.name, f"was {file.version}, is {_version(found)}")

    def _file(self, name: str) -> File:
        [name] = self._options.wanted([name]) or [""]
        if not name:
            raise Failure(
                Reason.INVALID_REQUEST, f"source {self.url}: the patterns leave the file out; drop them"
            )
        found = os.stat(self._path)
        return File(name, found.st_size, (), _version(found))

    def _open(self, name: str) -> int:
        """Open a listed file without following a link anywhere below the root."""
        root = os.path.realpath(self._path)
        if not os.path.isdir(root):
            if name != os.path.basename(self._path):
                raise _changed(name, f"{self._path} is a file")
            return os.open(root, _FILE)
        directory = os.open(root, _DIRECTORY)
        try:
            *parents, last = name.split("/")
            for part in parents:
                below = os.open(part, _DIRECTORY, dir_fd=directory)
                os.close(directory)
                directory = below
            return os.open(last, _FILE, dir_fd=directory)
        finally:
            os.close(directory)

    def _walk(self) -> Iterator[File]:
        count = 0
        root = os.path.realpath(self._path)
        for parent, directories, names, descriptor in os.fwalk(root, onerror=_raise, follow_symlinks=False):
            relative = os.path.relpath(parent, root)
            prefix = "" if relative == "." else f"{relative}/"
            for name in directories:
                if stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
                    names.append(name)
            for name in self._options.wanted(prefix + name for name in names):
                found = os.stat(name.rpartition("/")[2], dir_fd=descriptor, follow_symlinks=False)
                if not stat.S_ISREG(found.st_mode):
                    kind = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "not a plain file"
                    raise Failure(
                        Reason.INVALID_REQUEST,
                        f"source {self.url}: {name!a} is {kind}; name a directory of plain files"
                        " (`cp -rL` makes one), or ignore it",
                    )
                count += 1
                if count > MAX_FILES:
                    raise Failure(
                        Reason.INVALID_REQUEST,
                        f"source {self.url}: has more than {MAX_FILES} files; name a smaller directory",
                    )
                yield File(name, found.st_size, (), _version(found))

    def failure(self, error: OSError, name: str, *, listed: bool = False) -> Failure:
        """What an error of the file system stands for."""
        said = f"source {self.url}: {name!a:.300}: {error.strerror}"
        if error.errno in (errno.EACCES, errno.EPERM):
            return Failure(Reason.ACCESS_DENIED, f"{said}; let uid {os.geteuid()} read it")
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ESTALE, errno.ENXIO):
            if listed:
                return _changed(name, f"{error.strerror}")
            return Failure(Reason.INVALID_REQUEST, f"{said}; name a directory or file that is there")
        return Failure(Reason.SOURCE_UNAVAILABLE, said)


class _Range:
    """Bytes [start, end) of an open file."""

    digests: tuple[Digest, ...] = ()

    def __init__(self, source: FilesSource, descriptor: int, file: File, start: int, end: int) -> None:
        self._source, self._descriptor, self._file = source, descriptor, file
        self._at, self._end = start, end

    def readinto(self, buffer: memoryview, /) -> int:
        """The next bytes; the last ones only if the file is still the one that was listed."""
        if self._at >= self._end:
            return 0
        try:
            count = os.preadv(self._descriptor, [buffer[: self._end - self._at]], self._at)
        except OSError as error:
            raise self._source.failure(error, self._file.name, listed=True) from error
        if not count:
            raise _changed(self._file.name, f"ends at byte {self._at}")
        self._at += count
        if self._at == self._end:
            self._source.check(self._descriptor, self._file)
        return count


def _path(url: str) -> str:
    path = url
    if not url.startswith("/"):
        parts = urlsplit(url)
        path = unquote(parts.path)
        if parts.netloc not in ("", "localhost") or not path.startswith("/") or parts.query or parts.fragment:
            raise Failure(
                Reason.INVALID_REQUEST, f"source {url!a:.200}: write file:///path, with an absolute path"
            )
    if "\0" in path or not path.isprintable():
        raise Failure(Reason.INVALID_REQUEST, f"source {url!a:.200}: the path has a control character")
    return os.path.normpath("/" + path.lstrip("/"))


def _version(found: os.stat_result) -> str:
    return f"mtime={found.st_mtime_ns} size={found.st_size} inode={found.st_ino}"


def _changed(name: str, how: str) -> Failure:
    return Failure(Reason.SOURCE_CHANGED, f"file {name!a}: {how}; list the source anew")


def _raise(error: OSError) -> None:
    raise error
