"""What is done in which order or side by side, and how long each took."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")

Step = tuple[str, Callable[[], object]]
"""A name, and what is to be done."""


class Steps:
    """Runs steps, and says of each when it begins and how long it took.

    Args:
        say: is given each line.
        clock: tells seconds.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.say = say
        self._clock = clock
        self._begun = clock()

    def run(self, name: str, step: Callable[[], T]) -> T:
        """Run one, and return what it returned. What it raises goes on."""
        self.say(f"  {name:<44} ...")
        begun = self._clock()
        result = step()
        self.say(f"  {name:<44} {self._clock() - begun:7.1f} s")
        return result

    def side_by_side(self, lists: Iterable[Sequence[Step]]) -> None:
        """Run lists of steps beside each other, those of a list in its order.

        Once one fails no other is begun; it raises when those that run have ended.
        """
        busy = [one for one in lists if one]
        if busy:
            failed = threading.Event()
            with ThreadPoolExecutor(len(busy)) as pool:
                ends = [pool.submit(self._each, one, failed) for one in busy]
            for end in ends:
                end.result()

    def _each(self, steps: Sequence[Step], failed: threading.Event) -> None:
        for name, step in steps:
            if failed.is_set():
                return
            try:
                self.run(name, step)
            except BaseException:
                self.say(f"  {name:<44}  FAILED; waiting for what else is being built")
                failed.set()
                raise

    @property
    def seconds(self) -> float:
        """Since these steps were made."""
        return self._clock() - self._begun
