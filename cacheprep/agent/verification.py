"""Reading every byte of a cache, at a bounded rate, until told to stop."""

from __future__ import annotations

import threading
import time

from cacheprep.agent.confinement import confined
from cacheprep.agent.disks import Found
from cacheprep.failures import Failure, Reason
from cacheprep.store.layout import Layout
from cacheprep.store.locks import try_lock
from cacheprep.store.verify import Verdict, deep, settle
from cacheprep.transfer.pace import Bandwidth


def read_all(found: Found, rate: float, stop: threading.Event, at: float) -> Verdict:
    """Verify a cache deeply, and make its marker say what was found.

    Args:
        found: the cache.
        rate: bytes per second.
        stop: ends it.
        at: Unix time, s, from which on it then is verified.

    Raises:
        Failure: Canceled if it was stopped, or somebody works on the cache.
        OSError: the disk refused.
    """
    if stop.is_set():
        raise Failure(Reason.CANCELED, f"cache {found.place.key}: stopped before it was verified")
    return confined(found.layout.root, _verify, found.place.key, rate, at, stop=stop)


def _verify(layout: Layout, key: str, rate: float, at: float) -> Verdict:
    held = try_lock(layout.fill_lock(key))
    if held is None:
        raise Failure(Reason.CANCELED, f"cache {key}: another process works on it")
    pace, turn = Bandwidth(rate), threading.Lock()

    def read(amount: int) -> None:
        with turn:
            wait = pace.took(amount, time.monotonic())
        time.sleep(wait)

    with held:
        verdict, manifest = deep(layout, key, lambda: at, read)
        settle(layout, verdict, manifest)
    return verdict
