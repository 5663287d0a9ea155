"""Where what was built is kept, and how two that want the same build it once."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def root() -> Path:
    """The cache's directory: WARMROUTE_CACHE, else ~/.cache/warmroute. May be removed at any time."""
    return Path(os.environ.get("WARMROUTE_CACHE") or Path.home() / ".cache" / "warmroute")


@contextmanager
def alone(name: str) -> Iterator[None]:
    """Hold the lock `name`: of processes that build the same thing, the second finds it built."""
    locks = root() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / name).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
