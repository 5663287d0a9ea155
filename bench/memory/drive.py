"""One strategy and its pool under very many prompts that mostly never come again."""

from __future__ import annotations

import os
import random
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from bench.memory.footprint import Footprint, footprint
from extproc.pool.pool import InFlight, Pool
from extproc.pool.reports import EngineReport
from extproc.prefix import BlockKeys
from extproc.routing import build
from extproc.routing.prefix_aware import PrefixAware

STRATEGIES = {
    "RANDOM": ("RANDOM", None),
    "LEAST_OUTSTANDING_REQUESTS": ("LEAST_OUTSTANDING_REQUESTS", None),
    "PREFIX_AWARE": ("PREFIX_AWARE", None),
    "PREFIX_AWARE, prefixLength 4096": ("PREFIX_AWARE", 4096),
}
"""What is measured: name in the report, name of the strategy, prefix length or None for auto."""
ENDPOINTS = 7
RATE = 50.0
"""Requests per second of the pool's clock."""
IN_FLIGHT = 60
BLOCK_BYTES = 256
MOST_KEYS = 40
"""Keys of a prompt: 1 to so many, as of prompts of up to 10 KB."""
REPLICAS = 4
"""Of so many that share their picks this is one: it picks for one prompt and is told of the others."""
SAMPLES = 100
CHANGES = 20
"""Endpoints replaced in the course of a run."""


_NOTHING = Footprint(0, 0)
_ODD = 0x9E37_79B9_7F4A_7C15
_64_BITS = (1 << 64) - 1


@dataclass(slots=True)
class Grown:
    """What one strategy kept."""

    requests: int
    start_mb: float
    """Resident memory before the first request."""
    resident_mb: list[float] = field(default_factory=list)
    """The same after each hundredth of the requests."""
    state: Footprint = _NOTHING
    """Strategy and pool at the end."""

    @property
    def most_mb(self) -> float:
        """What the process grew by at most."""
        return max(self.resident_mb) - self.start_mb

    @property
    def second_half_mb(self) -> float:
        """By how much the second half of the requests made it grow beyond the first."""
        middle = len(self.resident_mb) // 2
        return max(self.resident_mb[middle:]) - max(self.resident_mb[:middle])


def drive(name: str, requests: int, most_keys: int = MOST_KEYS) -> Grown:
    """Send so many requests, a third of them going on with one of the last thousand prompts.

    Now and then an endpoint is replaced by one with another address, engines report each second, and other
    replicas tell of their picks.
    """
    strategy_name, length = STRATEGIES[name]
    strategy = build(strategy_name, prefix_length="auto" if length is None else length)
    pool = Pool("bench")
    draw = random.Random(1)
    chains = _Chains(draw, most_keys)
    addresses = [_address(number) for number in range(ENDPOINTS)]
    pool.set_endpoints(addresses)
    recent: deque[BlockKeys] = deque(maxlen=1000)
    open_: deque[InFlight] = deque()
    endpoints = pool.snapshot(0.0)
    found = Grown(requests, resident_mb())
    for number in range(requests):
        now = number / RATE
        if number % max(1, requests // SAMPLES) == 0:
            found.resident_mb.append(resident_mb())
        if number % max(1, requests // CHANGES) == 0:
            addresses[draw.randrange(ENDPOINTS)] = _address(ENDPOINTS + number)
            pool.set_endpoints(addresses, now)
        if number % int(RATE) == 0:
            for address in addresses:
                pool.report(address, EngineReport(8, 1, 0.5, number * 100.0, number / 10, number / 20), now)
            # Once a second is enough for what is measured here, and saves a third of the time.
            endpoints = pool.snapshot(now)
        before = draw.choice(recent) if recent and draw.random() < 0.34 else None
        keys = chains(before)
        recent.append(keys)
        if number % REPLICAS and isinstance(strategy, PrefixAware):
            address = draw.choice(addresses)
            pool.heard(address, strategy.learn(keys, address), now)
            continue
        pick = strategy.pick(keys if strategy.wants_keys else None, endpoints, draw)
        open_.append(pool.take(pick.ranked[0], now, pick.uncached))
        if len(open_) > IN_FLIGHT:
            open_.popleft().release(now)
    found.resident_mb.append(resident_mb())
    recent.clear()
    found.state = footprint(strategy, pool)
    return found


class _Chains:
    """Makes prompts of new keys, or of those of an earlier prompt and one more."""

    def __init__(self, draw: random.Random, most: int) -> None:
        self._draw = draw
        self._most = most
        self._ends = [BLOCK_BYTES * (at + 1) for at in range(most)]
        self._made = 0

    def __call__(self, before: BlockKeys | None) -> BlockKeys:
        count = 1 if before is not None else 1 + int(self._draw.random() * self._most)
        start = self._made = self._made + count
        # Odd multiples of consecutive numbers differ, and look random enough for a dict.
        keys = [number * _ODD & _64_BITS for number in range(start, start + count)]
        if before is not None:
            keys = before.keys[: self._most - 1] + keys
        return BlockKeys(keys, self._ends[: len(keys)])


def _address(number: int) -> str:
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:8000"


def resident_mb() -> float:
    """Resident memory of this process, in 10^6 bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
