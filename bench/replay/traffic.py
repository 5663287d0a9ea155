"""Made traffic: conversations behind system prompts, of which few are popular, and documents asked about."""

from __future__ import annotations

import random
from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path

import orjson

BLOCK = 512
SYSTEMS = 200
DOCUMENTS = 20_000
GAP_S = 30.0
"""Mean time between two turns of a conversation."""


def write(path: Path, requests: int, rate: float) -> None:
    """A trace in Mooncake's format of so many requests, `rate` per second."""
    with path.open("wb") as file:
        for row in rows(requests, rate):
            file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))


def rows(requests: int, rate: float) -> Iterator[dict[str, object]]:
    """The requests in order of time; the same ones for the same arguments."""
    draw = random.Random(1)
    fresh = iter(range(1_000_000, 1 << 60))
    turns = 4.0
    # Each entry: time, number of the conversation, its blocks so far, its turns left.
    due: list[tuple[float, int, list[int], int]] = []
    start = 0.0
    conversation = 0
    for _ in range(requests):
        while not due or start <= due[0][0]:
            chain = [SYSTEMS * 10 + _zipf(draw, SYSTEMS) * 10 + depth for depth in range(2)]
            if draw.random() < 0.5:
                chain += [100_000 + _zipf(draw, DOCUMENTS) * 40 + depth for depth in range(8)]
            heappush(due, (start, conversation, chain, 1 + int(draw.expovariate(1 / (turns - 1)))))
            conversation += 1
            start += draw.expovariate(rate / turns)
        at, number, chain, left = heappop(due)
        chain = chain + [next(fresh) for _ in range(1 + int(draw.expovariate(0.5)))]
        output = 1 + int(draw.expovariate(1 / 200))
        tokens = BLOCK * len(chain) - draw.randrange(BLOCK)
        yield {
            "timestamp": round(at * 1000),
            "input_length": tokens,
            "output_length": output,
            "hash_ids": chain,
        }
        if left > 1:
            heappush(due, (at + draw.expovariate(1 / GAP_S), number, chain, left - 1))


def _zipf(draw: random.Random, count: int) -> int:
    """A number below `count`, the small ones more often: about as 1 / (n + 1)."""
    return int(count ** draw.random()) - 1
