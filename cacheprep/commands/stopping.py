"""SIGINT and SIGTERM, as a command that works for long takes them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from cacheprep.failures import Failure, Reason


@contextmanager
def canceled_by_signals(asks: Callable[[], bool] = lambda: False) -> Iterator[threading.Event]:
    """An event that the first signal sets; the second ends what goes on wherever it is.

    Args:
        asks: whether what goes on now does not look at the event; then the first signal ends it.
    """
    canceled = threading.Event()

    def stop(number: int, _: FrameType | None) -> None:
        again = canceled.is_set()
        canceled.set()
        if again or asks():
            raise Failure(Reason.CANCELED, f"stopped by {signal.Signals(number).name}")

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield canceled
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
