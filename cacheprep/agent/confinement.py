"""Work in one namespace's store out of which no link can lead.

What lies in a store was made by pods of its namespace, which may have put links there: to another namespace's
caches, say. An agent that followed them would, with its rights, write and delete there. So it works on a
store in a process whose root directory is that store (chroot(2)), and links end there.
"""

from __future__ import annotations

import codecs
import multiprocessing
import os
import threading
from collections.abc import Callable
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from cacheprep.failures import Failure, Reason
from cacheprep.store.layout import Layout

T = TypeVar("T")

_SYS_CHROOT = 18  # linux/capability.h
_STOP_SECONDS = 0.2
"""Between two looks whether to stop."""

# Codecs are loaded when first used, which cannot be done from inside.
codecs.lookup("ascii")

# Processes are forked by one that has no threads, and has loaded what they need.
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    ["cacheprep.agent.confinement", "cacheprep.agent.disks", "cacheprep.agent.verification"]
)


def confined(root: str, work: Callable[..., T], *arguments: Any, stop: threading.Event | None = None) -> T:
    """What `work` returns of the layout of the store at `root`, as seen from inside, and of `arguments`.

    It is a function of a module, imports nothing, and takes and returns what can be pickled. Where this
    process may not change a root directory, it works on stores of its own user only: there it has no right
    that who made the links has not.

    Args:
        root: the store; those above it are the operator's.
        work: what is to be done.
        arguments: for it.
        stop: ends it wherever it is.

    Raises:
        Failure: AccessDenied if the store is another user's and this process may not confine itself;
            Canceled if it was stopped.
        OSError: the store cannot be entered, or the process that works there ended.
        Exception: what `work` raises.
    """
    if not _may_change_root():
        owner = os.stat(root).st_uid
        if owner == os.geteuid():
            return work(Layout(root), *arguments)
        raise Failure(
            Reason.ACCESS_DENIED,
            f"store {root}: belongs to uid {owner}, and this process may not confine itself to it;"
            " give it the capability SYS_CHROOT",
        )
    here, there = _processes.Pipe(duplex=False)
    process = _processes.Process(target=_inside, args=(there, root, work, arguments), daemon=True)
    process.start()
    there.close()
    try:
        with here:
            while not here.poll(None if stop is None else _STOP_SECONDS):
                if stop is not None and stop.is_set():
                    raise Failure(Reason.CANCELED, f"store {root}: stopped while something was done there")
            result: T | BaseException = here.recv()
    except EOFError:
        raise OSError(f"store {root}: the process that worked there ended without a word") from None
    finally:
        process.kill()
        process.join()
    if isinstance(result, BaseException):
        raise result
    return result


def _inside(answer: Connection, root: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        os.chroot(root)
        os.chdir("/")
        result = work(Layout("/"), *arguments)
    except Exception as error:
        result = error
    answer.send(result)


@cache
def _may_change_root() -> bool:
    with open("/proc/self/status") as status:
        mask = next(int(line.split()[1], 16) for line in status if line.startswith("CapEff:"))
    return bool(mask >> _SYS_CHROOT & 1)
