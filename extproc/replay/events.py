"""Engines that join and leave while a trace runs."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_TEXT = re.compile(r"(?P<what>[a-z0-9-]+)@(?P<at>\d+(\.\d+)?)(?P<unit>s|m|h)?")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


class Change(NamedTuple):
    """At `at` seconds `add` engines with empty caches join, or the engine `remove` leaves."""

    at: float
    add: int = 0
    remove: str = ""

    def __str__(self) -> str:
        joining = "1 engine joins" if self.add == 1 else f"{self.add} engines join"
        return f"{self.remove + ' leaves' if self.remove else joining} at {self.at:g} s"


def adding(text: str) -> Change:
    """Read `2@600s`. Raises ValueError that says what is expected."""
    found = _TEXT.fullmatch(text.strip())
    if found is None or not found["what"].isdecimal() or not 1 <= int(found["what"]) <= 1000:
        raise ValueError(f"{text!r}: expected a number of engines from 1 to 1000 and a time, like 2@600s")
    return Change(float(found["at"]) * _UNITS[found["unit"]], add=int(found["what"]))


def removing(text: str) -> Change:
    """Read `engine-3@900s`. Raises ValueError that says what is expected."""
    found = _TEXT.fullmatch(text.strip())
    if found is None or not re.fullmatch(r"engine-[1-9]\d{0,5}", found["what"]):
        raise ValueError(f"{text!r}: expected an engine and a time, like engine-3@900s")
    return Change(float(found["at"]) * _UNITS[found["unit"]], remove=found["what"])


def check(changes: Iterable[Change], engines: int, end: float) -> None:
    """Raise ValueError for the first change that cannot be: an engine leaves that is not there, or something
    happens after `end`, the last request (seconds).
    """
    there = {f"engine-{number}" for number in range(1, engines + 1)}
    count = engines
    for change in sorted(changes, key=lambda one: one.at):
        if change.at > end:
            raise ValueError(f"{change}: the last request comes at {end:.0f} s")
        if change.add:
            there |= {f"engine-{count + number}" for number in range(1, change.add + 1)}
            count += change.add
        elif change.remove in there:
            there.remove(change.remove)
        elif int(change.remove.removeprefix("engine-")) <= count:
            raise ValueError(f"{change}: it has left before")
        else:
            raise ValueError(f"{change}: there is none; by then there are engine-1 to engine-{count}")
