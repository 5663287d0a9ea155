"""Work in one namespace's store out of which no link can lead.

What lies in a store was made by pods of its namespace, which may have put links there: to another namespace's
caches, say. An agent that followed them would, with its rights, write and delete there. So it works on a
store in a thread whose root directory is that store (chroot(2)), and links end there.
"""

from __future__ import annotations

import codecs
import ctypes
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from cacheprep.failures import Failure, Reason
from cacheprep.store.layout import Layout

T = TypeVar("T")

_CLONE_FS = 0x200  # linux/sched.h

# Codecs are loaded when first used, which cannot be done from inside.
codecs.lookup("ascii")


def confined(root: str, work: Callable[[Layout], T]) -> T:
    """Do `work` in the store at `root`; it gets the layout as seen from inside, where its root is `/`.

    It must not import anything. Where this process may not change a root directory, it works on stores of its
    own user only: there it has no right that who made the links has not.

    Raises:
        Failure: AccessDenied if it may not, and the store is another user's.
        OSError: the store cannot be entered.
        Exception: what `work` raises.
    """
    outcome: Future[T] = Future()

    def run() -> None:
        try:
            outcome.set_result(work(_enter(root)))
        except BaseException as error:
            outcome.set_exception(error)

    # A thread of its own: it has no way back out.
    thread = threading.Thread(target=run, name=f"in {root}")
    thread.start()
    thread.join()
    return outcome.result()


def _enter(root: str) -> Layout:
    try:
        _change_root(root)
    except PermissionError as error:
        owner = os.stat(root).st_uid
        if owner == os.geteuid():
            return Layout(root)
        raise Failure(
            Reason.ACCESS_DENIED,
            f"store {root}: belongs to uid {owner}, and this process may not confine itself to it;"
            " give it the capability SYS_CHROOT",
        ) from error
    return Layout("/")


def _change_root(root: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    # Threads share their root directory until one of them wants its own.
    if libc.unshare(_CLONE_FS) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), root)
    os.chroot(root)
    os.chdir("/")
