"""Engines that join and leave while a trace runs."""

from __future__ import annotations

import re
from typing import NamedTuple

_TEXT = re.compile(r"(?P<what>[a-z0-9-]+)@(?P<at>\d+(\.\d+)?)(?P<unit>s|m|h)?")
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}


class Change(NamedTuple):
    """At `at` seconds `add` engines with empty caches join, or the engine `remove` leaves."""

    at: float
    add: int = 0
    remove: str = ""

    def __str__(self) -> str:
        what = (
            f"{self.remove} leaves" if self.remove else f"{self.add} {'joins' if self.add == 1 else 'join'}"
        )
        return f"{what} at {self.at:g} s"


def adding(text: str) -> Change:
    """Read `2@600s`. Raises ValueError that says what is expected."""
    found = _TEXT.fullmatch(text.strip())
    if found is None or not found["what"].isdecimal() or not 1 <= int(found["what"]) <= 1000:
        raise ValueError(f"{text!r}: expected a number of engines from 1 to 1000 and a time, like 2@600s")
    return Change(float(found["at"]) * _UNITS[found["unit"]], add=int(found["what"]))


def removing(text: str, engines: int) -> Change:
    """Read `engine-3@900s`; the first engines are engine-1 to engine-`engines`, joiners are counted on."""
    found = _TEXT.fullmatch(text.strip())
    if found is None or not re.fullmatch(r"engine-[1-9]\d{0,5}", found["what"]):
        raise ValueError(
            f"{text!r}: expected an engine and a time, like engine-3@900s (engine-1 to engine-{engines})"
        )
    return Change(float(found["at"]) * _UNITS[found["unit"]], remove=found["what"])
