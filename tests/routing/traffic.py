"""Prompts and a router without gateway: what the specifications of routing are written in."""

from __future__ import annotations

import json
import random
from collections import deque
from functools import cache

import numpy as np

from extproc import prompt
from extproc.pool.pool import InFlight, Pool
from extproc.pool.snapshot import Snapshot
from extproc.prefix import BlockKeys, block_keys
from extproc.routing import Strategy, build
from extproc.routing.pick import Pick


def addresses(count: int) -> list[str]:
    return [f"10.0.{number // 200}.{number % 200 + 1}:8000" for number in range(count)]


@cache
def text(name: str, length: int) -> str:
    """The same text for the same name, and nothing in common with the text of another."""
    return random.Random(name).randbytes(length).hex()[:length]


@cache
def chat(*turns: str, system: str = "", limit: int | None = None) -> BlockKeys:
    """Block keys of a chat whose user and assistant take turns."""
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": ("user", "assistant")[at % 2], "content": turn} for at, turn in enumerate(turns)]
    body = json.dumps({"model": "llama", "messages": messages}).encode()
    understood = prompt.read("/v1/chat/completions", body, True)
    assert understood is not None
    return block_keys(understood, limit)


@cache
def _endpoints(count: int) -> Snapshot:
    pool = Pool("any")
    pool.set_endpoints(addresses(count))
    return pool.snapshot(0.0)


def snapshot(
    in_flight: list[int], suspects: frozenset[int] = frozenset(), ease: list[float] | None = None
) -> Snapshot:
    """A pool of as many endpoints as there are counts."""
    now = _endpoints(len(in_flight))
    return Snapshot(
        now.addresses,
        now.hashes,
        np.array(in_flight, dtype=np.int64),
        np.array([number not in suspects for number in range(len(in_flight))], dtype=np.bool_),
        ease=None if ease is None else np.array(ease),
    )


class Router:
    """A pool and its strategy under a clock that moves: `gap` seconds pass before each request.

    Requests stay in flight until the `concurrency` newest are left.
    """

    def __init__(
        self,
        endpoints: int = 4,
        strategy: Strategy | None = None,
        concurrency: int = 6,
        seed: int = 0,
        gap: float = 0.2,
    ) -> None:
        self.pool = Pool("llama")
        self.pool.set_endpoints(addresses(endpoints))
        self.strategy = build("PREFIX_AWARE") if strategy is None else strategy
        self.draw = random.Random(seed)
        self.concurrency = concurrency
        self.gap = gap
        self.now = 0.0
        self.running: deque[InFlight] = deque()

    def snapshot(self) -> Snapshot:
        return self.pool.snapshot(self.now)

    def pick(self, keys: BlockKeys | None) -> Pick:
        return self.strategy.pick(keys, self.snapshot(), self.draw)

    def take(self, pick: Pick) -> str:
        """Count the picked request until others have come after it; where it went."""
        self.running.append(self.pool.take(pick.ranked[0], self.now, pick.uncached))
        return pick.ranked[0]

    def send(self, keys: BlockKeys | None) -> str:
        """Where the request went."""
        self.now += self.gap
        while len(self.running) >= self.concurrency:
            self.running.popleft().release(self.now)
        return self.take(self.pick(keys))

    def finish_all(self) -> None:
        while self.running:
            self.running.popleft().release(self.now)

    def loads(self) -> list[int]:
        return sorted(self.pool.in_flight().values())
