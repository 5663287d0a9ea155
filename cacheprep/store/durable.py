"""Writes that are on the disk when the function returns: fsync(2) of files, and of directories for names."""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from cacheprep.store.layout import DIRECTORY_MODE, FILE_MODE

_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h


def sync_directory(path: str) -> None:
    """Make the names in a directory durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: str) -> None:
    """Make the bytes and the length of a file durable."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_directories(path: str) -> None:
    """Make the names in a directory and in all below it durable, the lowest first."""
    for at, _, _ in os.walk(path, topdown=False):
        sync_directory(at)


@contextmanager
def witness(path: str) -> Iterator[int]:
    """A descriptor to give to `sync_written`: it will tell of write errors from now on."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def syncfs_tells_errors(release: str) -> bool:
    """Whether syncfs(2) of a kernel (as uname -r has it) tells that bytes could not be written: since 5.8."""
    numbers = release.split("-")[0].split(".")
    try:
        return (int(numbers[0]), int(numbers[1])) >= (5, 8)
    except (ValueError, IndexError):
        return False


def sync_file_system(path: str) -> None:
    """Make everything on the file system of `path` durable (syncfs(2); its errors are told since Linux
    5.8)."""
    with witness(path) as fd:
        sync_written(fd)


def sync_written(fd: int) -> None:
    """Make everything durable on the file system that a descriptor is of.

    Raises:
        OSError: something could not be written since the descriptor was opened.
    """
    if _libc().syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def start_writing(fd: int, start: int, length: int) -> None:
    """Have the kernel begin to write these bytes out, so that the fsync at the end has little left to do."""
    _libc().sync_file_range(
        fd, ctypes.c_int64(start), ctypes.c_int64(length), ctypes.c_uint(_SYNC_FILE_RANGE_WRITE)
    )


def allocate(fd: int, length: int) -> bool:
    """Give a file its blocks and its length; False where the file system cannot (then only the length).

    Not os.posix_fallocate: the C library imitates it by writing into every block.

    Raises:
        OSError: ENOSPC or EDQUOT, among others.
    """
    if length == 0:
        return True
    if _libc().fallocate(fd, 0, ctypes.c_int64(0), ctypes.c_int64(length)) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EOPNOTSUPP, errno.ENOSYS):
        os.ftruncate(fd, length)
        return False
    raise OSError(number, os.strerror(number))


def write_file(path: str, content: bytes, *, locked: bool = True) -> None:
    """Replace a file by one of this content, durably: whoever reads sees all of the old or all of the new.

    Args:
        path: the file.
        content: all of it.
        locked: whether a lock keeps others from writing it at the same time.
    """
    fresh = f"{path}.new" if locked else f"{path}.{secrets.token_hex(8)}.new"
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, FILE_MODE)
    try:
        with memoryview(content) as left:
            done = 0
            while done < len(left):
                done += os.write(fd, left[done:])
        os.fchmod(fd, FILE_MODE)
        os.fsync(fd)
    finally:
        os.close(fd)
    os.rename(fresh, path)
    sync_directory(os.path.dirname(path))


def move(source: str, target: str) -> None:
    """Rename within the file system, durably."""
    os.rename(source, target)
    sync_directory(os.path.dirname(target))
    if os.path.dirname(source) != os.path.dirname(target):
        sync_directory(os.path.dirname(source))


def unlink(path: str) -> bool:
    """Remove a file durably; False if there was none."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    sync_directory(os.path.dirname(path))
    return True


def make_directory(path: str) -> None:
    """Make a directory and those above it as far as they lack, with our mode whatever the umask is."""
    missing = []
    while not os.path.isdir(path):
        missing.append(path)
        path = os.path.dirname(path)
    for directory in reversed(missing):
        try:
            os.mkdir(directory, DIRECTORY_MODE)
        except FileExistsError:
            continue
        os.chmod(directory, DIRECTORY_MODE)
        sync_directory(os.path.dirname(directory))


def delete_tree(path: str, told: Callable[[str], None] | None = None) -> None:
    """Delete a directory and all in it, or a file; nothing if it is not there.

    Args:
        path: what to delete. Symbolic links are removed, never followed.
        told: gets what could not be deleted, and why.
    """

    def failed(_: object, name: str, error: BaseException) -> None:
        if not isinstance(error, FileNotFoundError) and told is not None:
            told(f"{name}: {error}")

    def failed_before_312(function: object, name: str, error: tuple[object, BaseException, object]) -> None:
        failed(function, name, error[1])

    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, onerror=failed_before_312)
    else:
        try:
            os.unlink(path)
        except OSError as error:
            failed(None, path, error)


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
