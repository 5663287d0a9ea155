"""Is prefix-aware routing worth it for this traffic? Answered from the trace alone, before any simulation.

Counts what prompts have in common, and what caches of the engines' size could make of it at best and by
chance. No time passes here and nothing is queued: the order of requests is all that counts.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from extproc.replay.arrival import Trace

AGES_S = (10.0, 60.0, 600.0, 3600.0)
"""Bounds of the classes of age: seconds since the block was last used."""
DEPTHS = (1024, 4096, 16384, 65536)
"""Bounds of the classes of depth: tokens from the start of the prompt."""
LITTLE = 0.05
"""Shares of tokens below this are not worth a router."""
SHORT_TOKENS = 256
"""Prompts below this are computed within one step of an engine, cached or not."""


@dataclass(frozen=True, slots=True)
class Worth:
    """What a trace has to gain. Shares are of all prompt tokens."""

    requests: int
    median_prompt_tokens: int
    reusable: float
    """Share that an infinite cache would find."""
    by_depth: dict[str, float]
    """Parts of `reusable` by depth in the prompt."""
    by_age: dict[str, float]
    """Parts of `reusable` by time since last use (seconds of the run)."""
    prefixes: int
    """Distinct prefixes that any request found."""
    carry_half: int
    """The most used of them that make up half of `reusable`."""
    carry_most: int
    """The same for nine tenths."""
    best: float
    """Share found by one cache as large as those of all engines together: more, no routing can reach."""
    by_chance: float
    """Share found when requests go to engines at random."""
    verdict: str
    """The same in words."""


def worth(trace: Trace, engines: int, blocks: int, time_scale: float = 1.0) -> Worth:
    """Analyse a trace for so many engines of so many KV cache blocks each."""
    arrivals = trace.arrivals
    size = trace.block_tokens
    total = max(1, sum(arrival.prompt_tokens for arrival in arrivals))
    depths = dict.fromkeys(_classes(DEPTHS, "tokens"), 0)
    ages = dict.fromkeys(_classes(AGES_S, "s"), 0)
    depth_names, age_names = list(depths), list(ages)
    last: dict[int, float] = {}
    carried: dict[int, int] = {}
    for arrival in arrivals:
        now = arrival.at * time_scale
        found = 0
        for block in _may_be_found(arrival.blocks, arrival.prompt_tokens, size):
            before = last.get(block)
            if before is None:
                break
            found += 1
            depths[depth_names[_class(DEPTHS, found * size)]] += size
            ages[age_names[_class(AGES_S, now - before)]] += size
        if found:
            prefix = arrival.blocks[found - 1]
            carried[prefix] = carried.get(prefix, 0) + found * size
        last.update(dict.fromkeys(arrival.blocks, now))
    reusable = sum(depths.values()) / total
    shares = sorted(carried.values(), reverse=True)
    best = pooled(trace, engines * blocks) / total
    by_chance = _scattered(trace, engines, blocks) / total
    lengths = sorted(arrival.prompt_tokens for arrival in arrivals)
    median = lengths[len(lengths) // 2] if lengths else 0
    return Worth(
        len(arrivals),
        median,
        reusable,
        {name: value / total for name, value in depths.items()},
        {name: value / total for name, value in ages.items()},
        len(carried),
        _carrying(shares, 0.5),
        _carrying(shares, 0.9),
        best,
        by_chance,
        _verdict(trace, reusable, best, by_chance, median),
    )


def pooled(trace: Trace, blocks: int) -> int:
    """Tokens that one cache of so many blocks finds, requests one after the other."""
    cache = _Lru(blocks)
    size = trace.block_tokens
    return size * sum(cache.use(one.blocks, one.prompt_tokens, size) for one in trace.arrivals)


def _scattered(trace: Trace, engines: int, blocks: int) -> int:
    draw = random.Random(1)
    caches = [_Lru(blocks) for _ in range(engines)]
    size = trace.block_tokens
    return size * sum(draw.choice(caches).use(one.blocks, one.prompt_tokens, size) for one in trace.arrivals)


class _Lru:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def use(self, keys: Sequence[int], prompt_tokens: int, size: int) -> int:
        blocks = self._blocks
        found = 0
        for key in _may_be_found(keys, prompt_tokens, size):
            if key not in blocks:
                break
            found += 1
        # From the deepest, so that a chain is evicted from its end, as engines do.
        for key in reversed(keys):
            blocks[key] = None
            blocks.move_to_end(key)
        while len(blocks) > self._capacity:
            blocks.popitem(last=False)
        return found


def _may_be_found(blocks: Sequence[int], prompt_tokens: int, size: int) -> Sequence[int]:
    """All blocks but one that holds the last token: that token is always computed."""
    return blocks[: (prompt_tokens - 1) // size]


def _classes(bounds: Sequence[float], unit: str) -> list[str]:
    return [*(f"up to {bound:g} {unit}" for bound in bounds), f"over {bounds[-1]:g} {unit}"]


def _class(bounds: Sequence[float], value: float) -> int:
    return next((at for at, bound in enumerate(bounds) if value <= bound), len(bounds))


def _carrying(shares: list[int], part: float) -> int:
    wanted, have = part * sum(shares), 0
    for count, share in enumerate(shares, 1):
        have += share
        if have >= wanted:
            return count
    return len(shares)


def _verdict(trace: Trace, reusable: float, best: float, by_chance: float, median: int) -> str:
    if not trace.has_prefixes:
        return "Unknown: this trace does not say which prompts begin alike."
    if reusable < LITTLE:
        return (
            f"Little: only {reusable:.1%} of prompt tokens were seen before, prompts are nearly all unique. "
            "Route by load."
        )
    if best < LITTLE:
        return (
            f"Little: {reusable:.1%} of prompt tokens come again, but so late that these engines' caches "
            f"have lost them ({best:.1%} at best). More KV cache would help; routing alone will not."
        )
    if best - by_chance < LITTLE:
        return (
            f"Little: engines find {by_chance:.1%} wherever requests go, and {best:.1%} at best. What "
            "prompts share is in every cache already."
        )
    less = 1 - (1 - best) / (1 - by_chance)
    text = (
        f"Yes: at best {best:.1%} of prompt tokens are found in caches, {by_chance:.1%} when requests go "
        f"anywhere. That is up to {less:.0%} less prefill work."
    )
    if median < SHORT_TOKENS:
        text += (
            f" But half of the prompts have fewer than {median + 1} tokens: first tokens come fast anyway."
        )
    return text
