"""Traces that the specifications of replay are written in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from extproc.pool.pool import Pool
from extproc.pool.snapshot import Snapshot
from extproc.prefix import BlockKeys
from extproc.replay.arrival import TOKEN_BYTES, Arrival, Trace, key_of
from extproc.simulation.presets import EngineSpec

DATA = Path(__file__).parent.parent / "data" / "traces"
BLOCK = 64
ENGINE = EngineSpec(
    prefill_tokens_per_s=8000,
    prefill_overhead_s=0.02,
    step_s=0.025,
    step_per_request_s=0.0,
    blocks=4000,
    block_tokens=BLOCK,
    chunk_tokens=0,
)


def request(at: float, chain: Sequence[int], output_tokens: int = 20, session: int = 0) -> Arrival:
    """A request whose prompt is these blocks and a few tokens more."""
    keys = [key_of(one) for one in chain]
    ends = [BLOCK * TOKEN_BYTES * (depth + 1) for depth in range(len(keys))]
    return Arrival(at, BlockKeys(keys, ends), keys, BLOCK * len(keys) + 5, output_tokens, session)


def trace(arrivals: Sequence[Arrival]) -> Trace:
    return Trace("made", sorted(arrivals, key=lambda one: one.at), BLOCK)


def conversations(count: int, turns: int = 6, gap: float = 4.0, system: int = 4, rate: float = 4.0) -> Trace:
    """Conversations behind one system prompt of `system` blocks; each turn adds four blocks."""
    draw = random.Random(7)
    arrivals = []
    start = 0.0
    for number in range(1, count + 1):
        start += draw.expovariate(rate / turns)
        at = start
        chain = [*range(system), *(number * 1000 + depth for depth in range(4 * turns))]
        for turn in range(turns):
            arrivals.append(request(at, chain[: system + 4 * (turn + 1)], session=number))
            at += gap + draw.expovariate(1.0)
    return trace(arrivals)


def snapshot(in_flight: Sequence[int]) -> Snapshot:
    """A pool whose endpoints have so many requests in flight."""
    pool = Pool("any")
    addresses = [f"10.0.0.{number + 1}:8000" for number in range(len(in_flight))]
    pool.set_endpoints(addresses)
    for address, count in zip(addresses, in_flight, strict=True):
        for _ in range(count):
            pool.take(address, 0.0)
    return pool.snapshot(0.0)
