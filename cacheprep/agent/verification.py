"""Reading every byte of a cache, at a bounded rate, until told to stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from cacheprep.agent.confinement import confined
from cacheprep.agent.disks import Found
from cacheprep.failures import Failure, Reason
from cacheprep.store.layout import Layout
from cacheprep.store.locks import try_lock
from cacheprep.store.verify import Verdict, deep, settle
from cacheprep.transfer.pace import Bandwidth


def read_all(found: Found, rate: float, stop: threading.Event, wall: Callable[[], float]) -> Verdict:
    """Verify a cache deeply, and make its marker say what was found.

    Args:
        found: the cache.
        rate: bytes per second.
        stop: ends it.
        wall: Unix time, s.

    Raises:
        Failure: Canceled if it was stopped, or somebody works on the cache.
        OSError: the disk refused.
    """
    key = found.place.key
    pace, turn = Bandwidth(rate), threading.Lock()

    def read(amount: int) -> None:
        with turn:
            wait = pace.took(amount, time.monotonic())
        if stop.wait(wait):
            raise Failure(Reason.CANCELED, f"cache {key}: stopped while it was verified")

    def verify(layout: Layout) -> Verdict:
        held = try_lock(layout.fill_lock(key))
        if held is None:
            raise Failure(Reason.CANCELED, f"cache {key}: another process works on it")
        with held:
            verdict, manifest = deep(layout, key, wall, read)
            settle(layout, verdict, manifest)
        return verdict

    return confined(found.layout.root, verify)
