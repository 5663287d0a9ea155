"""What no router could do better than by much: the bound beside which the policies are read.

All engines together have one cache as large as theirs, and a request waits in one queue until the first
engine is free, instead of being sent to one when it comes. Neither is possible behind a router: engines have
caches of their own, and a request is sent on at once.
"""

from __future__ import annotations

from heapq import heapreplace
from typing import NamedTuple

import numpy as np

from extproc.replay.arrival import Trace
from extproc.replay.run import Fleet
from extproc.simulation.cache import BlockCache


class Ideal(NamedTuple):
    """What it would give."""

    hit_rate: float
    ttft_ms: dict[str, float]
    """`mean`, `p50`, `p95`."""


def ideal(trace: Trace, fleet: Fleet) -> Ideal:
    """The bound for a trace and engines."""
    spec = fleet.spec
    cache = BlockCache(spec.blocks * fleet.engines)
    free_at = [0.0] * fleet.engines
    found = []
    cached = 0
    for arrival in trace.arrivals:
        at = arrival.at * fleet.time_scale
        start = max(at, free_at[0])
        hits = cache.match(arrival.blocks, (arrival.prompt_tokens - 1) // spec.block_tokens)
        cached += hits * spec.block_tokens
        uncached = arrival.prompt_tokens - hits * spec.block_tokens
        end = start + spec.prefill_overhead_s + uncached / spec.prefill_tokens_per_s
        if cache.acquire(arrival.blocks, 0):
            cache.release(arrival.blocks, 0, len(arrival.blocks))
        heapreplace(free_at, end)
        found.append((end - at) * 1000)
    p50, p95 = np.percentile(found, (50, 95))
    prompts = sum(arrival.prompt_tokens for arrival in trace.arrivals)
    return Ideal(cached / prompts, {"mean": float(np.mean(found)), "p50": float(p50), "p95": float(p95)})
