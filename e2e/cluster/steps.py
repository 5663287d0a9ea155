"""What is done in which order, and how long each took."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")


@dataclass
class Steps:
    """Runs steps, and says of each when it begins and how long it took."""

    say: Callable[[str], None]
    clock: Callable[[], float] = time.monotonic
    """Seconds."""
    taken: list[tuple[str, float]] = field(default_factory=list)
    """Name and seconds of each that is done."""

    def run(self, name: str, step: Callable[[], T]) -> T:
        """Run one, and return what it returned. What it raises goes on."""
        self.say(f"  {name:<44} ...")
        begun = self.clock()
        result = step()
        self.taken.append((name, self.clock() - begun))
        self.say(f"  {name:<44} {self.taken[-1][1]:7.1f} s")
        return result

    @property
    def seconds(self) -> float:
        """All of them together."""
        return sum(seconds for _, seconds in self.taken)
