"""Locks between processes, which the kernel drops when their holder dies.

Locks of open file descriptions (fcntl(2), F_OFD_SETLK) on whole files below `locks/`. A lock belongs to an
open file, so `cacheprep run` hands it to the command that it becomes. Unlike with flock(2), who only wants to
know whether a lock is held asks without taking it: nobody fails because somebody else looked. Only local file
systems keep them, hence `root.py` refuses network ones.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Callable
from types import TracebackType

from cacheprep.store.layout import FILE_MODE

FIRST_WAIT_S, LONGEST_WAIT_S = 0.02, 0.5
"""Between two tries for a lock that another process holds."""
_FLOCK = "hhqqi4x"
"""struct flock of 64-bit Linux: type, whence, start, length (0: to the end), pid (0 for these locks)."""


class Lock:
    """A lock that is held until `release`, or until this process ends."""

    __slots__ = ("fd", "path")

    def __init__(self, path: str, fd: int) -> None:
        self.path = path
        self.fd = fd

    def release(self) -> None:
        """Let it go. Does nothing the second time."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def forget(self) -> None:
        """Remove the lock's file and let it go; who waits for it makes a new one."""
        if self.fd >= 0:
            os.unlink(self.path)
            self.release()

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def try_lock(path: str, *, shared: bool = False, create: bool = True) -> Lock | None:
    """The lock, or None if another open file holds it (or, without `create`, nobody ever took it).

    A shared lock needs only the right to read an existing file, the other one that to write it.

    Raises:
        OSError: the file can be neither opened nor made.
    """
    while True:
        fd = _open(path, os.O_RDONLY if shared else os.O_RDWR, create)
        if fd is None:
            return None
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _whole(fcntl.F_RDLCK if shared else fcntl.F_WRLCK))
            if _is_at(fd, path):
                return Lock(path, fd)
        except OSError as error:
            os.close(fd)
            if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
                return None
            raise
        # Whoever held it has removed its file meanwhile: others lock the new one.
        os.close(fd)


def lock(
    path: str,
    wait: Callable[[float], None],
    *,
    shared: bool = False,
    waiting: Callable[[], None] | None = None,
) -> Lock:
    """The lock, once no other holds it.

    Args:
        path: the lock's file.
        wait: sleeps for that many seconds, or raises to give up.
        shared: whether others may hold it too.
        waiting: called once if the lock is not free.
    """
    pause = FIRST_WAIT_S
    while (held := try_lock(path, shared=shared)) is None:
        if waiting is not None:
            waiting()
            waiting = None
        wait(pause)
        pause = min(2 * pause, LONGEST_WAIT_S)
    return held


def is_held(path: str) -> bool:
    """Whether anyone holds the lock, shared or not, at this moment. Takes nothing."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _whole(fcntl.F_WRLCK))
    finally:
        os.close(fd)
    in_its_way, *_ = struct.unpack(_FLOCK, answer)
    return bool(in_its_way != fcntl.F_UNLCK)


def _whole(kind: int) -> bytes:
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


def _open(path: str, mode: int, create: bool) -> int | None:
    try:
        return os.open(path, mode | os.O_CLOEXEC)
    except FileNotFoundError:
        if not create:
            return None
    return os.open(path, mode | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path))
    except FileNotFoundError:
        return False
