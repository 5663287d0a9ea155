"""Reserve a cache's bytes before the first one comes, across processes.

Under the lock of the root: count what is in use (as df does), add what others have reserved and not allocated
yet, and allocate every large file at full length (fallocate(2)). From then on the disk itself says what is
taken, also to kubelet and to those who do not share the lock. For small files, and where a file system
cannot allocate or shows it late, the file `reserved` of each cache being fetched stands for it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from cacheprep.failures import Failure, Reason
from cacheprep.store.capacity import Disk, Limits, measure, need, room
from cacheprep.store.durable import allocate, make_directory, sync_file_system
from cacheprep.store.layout import FILE_MODE, Layout, is_key
from cacheprep.store.locks import is_held, lock

ALLOCATED_FROM = 1 << 20
"""Bytes. Smaller files are counted in `reserved` only: to make and allocate thousands of them takes a
while, under a lock that others wait for, and together they are little."""
SHOWS_LATE = frozenset(("btrfs",))
"""File systems whose statfs(2) learns of an allocation only with the next commit."""

FREED_LOOKS, FREED_PAUSE_S = 100, 0.05
"""How often, and after how many seconds, the disk is asked whether it shows what was removed."""


class Piece(NamedTuple):
    """A file to be reserved: its name below `model/`, and its length in bytes."""

    name: str
    size: int


def reserve(
    layout: Layout,
    key: str,
    pieces: Sequence[Piece],
    limits: Limits,
    wait: Callable[[float], None],
    *,
    make_room: Callable[[int], int] | None = None,
    shows_late: bool = False,
) -> None:
    """Reserve room for a cache and allocate its files below `partial/<key>/cache/model`; what is there is
    kept.

    The caller holds the key's fill lock.

    Args:
        layout: of the root.
        key: of the cache.
        pieces: its files.
        limits: what must stay free.
        wait: sleeps for that many seconds while another process reserves, or raises to give up.
        make_room: asked for the bytes that lack; removes what may go, and returns how many bytes it removed.
        shows_late: whether the file system is one of `SHOWS_LATE`.

    Raises:
        Failure: InsufficientCapacity, with all figures; nothing more is allocated than before then.
        OSError: the disk fails otherwise.
    """
    directory = layout.future_model(key)
    with lock(layout.root_lock, wait):
        _check(layout, key, pieces, limits, wait, make_room, shows_late=shows_late)
        before = lengths(directory, pieces)
        _write_reserved(layout, key, pieces)
        try:
            _allocate(directory, pieces)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            _give_back(directory, pieces, before)
            what = "the quota is" if error.errno == errno.EDQUOT else "the disk is"
            raise Failure(
                Reason.INSUFFICIENT_CAPACITY,
                f"cache {key}: {what} too small for {sum(p.size for p in pieces)} bytes: {error.strerror}",
            ) from error


def _check(
    layout: Layout,
    key: str,
    pieces: Sequence[Piece],
    limits: Limits,
    wait: Callable[[float], None],
    make_room: Callable[[int], int] | None,
    *,
    shows_late: bool,
) -> None:
    while True:
        if shows_late:
            sync_file_system(layout.root)
        disk = measure(layout.root)
        directories = {os.path.dirname(piece.name) for piece in pieces}
        wanted = need([piece.size for piece in pieces], len(directories), disk.block)
        mine = allocated(layout.partial(key))
        others = outstanding(layout, besides=key)
        lacking = wanted.bytes - mine - room(disk, limits, others)
        there = len(lengths(layout.future_model(key), pieces))
        if disk.free_inodes is not None and wanted.inodes - there > disk.free_inodes:
            raise Failure(
                Reason.INSUFFICIENT_CAPACITY,
                f"cache {key}: needs {wanted.inodes - there} inodes, {disk.free_inodes} are free;"
                " remove files",
            )
        if lacking <= 0 or wanted.bytes <= mine:
            return
        freed = 0 if make_room is None else make_room(lacking)
        if freed <= 0:
            raise Failure(
                Reason.INSUFFICIENT_CAPACITY, _lacking(key, wanted.bytes, mine, disk, limits, others)
            )
        # xfs frees what was removed in the background.
        for _ in range(FREED_LOOKS):
            if measure(layout.root).available >= disk.available + min(freed, lacking):
                break
            wait(FREED_PAUSE_S)


def outstanding(layout: Layout, besides: str = "") -> int:
    """Bytes that living processes have reserved and the disk does not show as taken, but for one key's."""
    total = 0
    for key in _names(layout.partials):
        if key == besides or not is_key(key) or not is_held(layout.fill_lock(key)):
            continue
        try:
            with open(layout.reserved(key), encoding="ascii") as file:
                reserved = int(file.read())
        except (FileNotFoundError, ValueError):
            continue
        total += max(0, reserved - allocated(layout.partial(key)))
    return total


def allocated(path: str) -> int:
    """Bytes that a directory and all in it take on the disk."""
    total = 0
    for at, _, files in os.walk(path):
        for name in (at, *(os.path.join(at, file) for file in files)):
            try:
                total += os.lstat(name).st_blocks * 512  # stat(2): blocks are of 512 bytes, always
            except FileNotFoundError:
                continue
    return total


def allocated_below(path: str) -> int:
    """As `allocated`, without the directory itself."""
    return allocated(path) - os.lstat(path).st_blocks * 512


def lengths(directory: str, pieces: Sequence[Piece]) -> dict[str, int]:
    """The length of each file that is there, in bytes."""
    found = {}
    for piece in pieces:
        try:
            found[piece.name] = os.lstat(os.path.join(directory, piece.name)).st_size
        except (FileNotFoundError, NotADirectoryError):
            continue
    return found


def _allocate(directory: str, pieces: Sequence[Piece]) -> None:
    make_directory(directory)
    made = {directory}
    for piece in pieces:
        path = os.path.join(directory, piece.name)
        parent = os.path.dirname(path)
        if parent not in made:
            make_directory(parent)
            made.add(parent)
        if piece.size < ALLOCATED_FROM:
            continue
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        try:
            os.fchmod(fd, FILE_MODE)
            if os.fstat(fd).st_size > piece.size:
                os.ftruncate(fd, piece.size)
            allocate(fd, piece.size)
        finally:
            os.close(fd)


def _give_back(directory: str, pieces: Sequence[Piece], before: Mapping[str, int]) -> None:
    for piece in pieces:
        path = os.path.join(directory, piece.name)
        if piece.name not in before:
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
        else:
            os.truncate(path, before[piece.name])


def _write_reserved(layout: Layout, key: str, pieces: Sequence[Piece]) -> None:
    # Not durable: it counts only while a process lives.
    with open(layout.reserved(key), "w", encoding="ascii") as file:
        file.write(str(sum(piece.size for piece in pieces)))


def _lacking(key: str, wanted: int, mine: int, disk: Disk, limits: Limits, others: int) -> str:
    return (
        f"cache {key}: needs {wanted - mine} bytes more, and {max(0, room(disk, limits, others))} are left:"
        f" {disk.available} available, the disk is {disk.fullness():.1%} full and may be"
        f" {limits.watermark:.1%},"
        f" {limits.reserve} are kept free, {others} are reserved by others; remove a cache (`cacheprep rm`,"
        f" --evict), or raise --watermark"
    )


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []
