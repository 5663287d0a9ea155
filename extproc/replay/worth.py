"""Is prefix-aware routing worth it for this traffic? Answered from the trace alone, before any simulation.

Counts what prompts have in common, and what caches of the engines' size could make of it. No time passes here
and nothing is queued: the order of requests is all that counts.
"""

from __future__ import annotations

import random
from bisect import bisect_left
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

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
    by_chance: float
    """Share found when requests go to engines at random."""
    pooled: float
    """Share found by one cache as large as those of all engines together, which evicts as they do: what very
    good routing comes near to."""
    ceiling: float
    """Share found if such a cache knew the future: more, no routing can reach."""
    verdict: str
    """The same in words."""


def worth(trace: Trace, engines: int, blocks: int, time_scale: float = 1.0) -> Worth:
    """Analyse a trace for so many engines of so many KV cache blocks each."""
    size = trace.block_tokens
    total = max(1, sum(arrival.prompt_tokens for arrival in trace.arrivals))
    overlap = _overlap(trace, time_scale)
    reusable = size * sum(overlap.by_depth) / total
    by_chance = _at_random(trace, engines, blocks) / total
    together = pooled(trace, engines * blocks) / total
    lengths = sorted(arrival.prompt_tokens for arrival in trace.arrivals)
    median = lengths[len(lengths) // 2] if lengths else 0
    carried = sorted(overlap.by_prefix.values(), reverse=True)
    return Worth(
        len(trace.arrivals),
        median,
        reusable,
        _named(DEPTHS, "tokens", [size * count / total for count in overlap.by_depth]),
        _named(AGES_S, "s", [size * count / total for count in overlap.by_age]),
        len(carried),
        _carrying(carried, 0.5),
        _carrying(carried, 0.9),
        by_chance,
        together,
        ceiling(trace, engines * blocks) / total,
        _verdict(trace.has_prefixes, reusable, together, by_chance, median),
    )


@dataclass(slots=True)
class _Overlap:
    """Blocks that an infinite cache finds."""

    by_depth: list[int]
    """By class of `DEPTHS`."""
    by_age: list[int]
    """By class of `AGES_S`."""
    by_prefix: dict[int, int]
    """By the deepest block that a request found."""


def _overlap(trace: Trace, time_scale: float) -> _Overlap:
    overlap = _Overlap([0] * (len(DEPTHS) + 1), [0] * (len(AGES_S) + 1), {})
    last: dict[int, float] = {}
    size = trace.block_tokens
    for arrival in trace.arrivals:
        now = arrival.at * time_scale
        found = 0
        for block in arrival.blocks[: _findable(arrival.prompt_tokens, size)]:
            before = last.get(block)
            if before is None:
                break
            found += 1
            overlap.by_depth[bisect_left(DEPTHS, found * size)] += 1
            overlap.by_age[bisect_left(AGES_S, now - before)] += 1
        if found:
            prefix = arrival.blocks[found - 1]
            overlap.by_prefix[prefix] = overlap.by_prefix.get(prefix, 0) + found
        last.update(dict.fromkeys(arrival.blocks, now))
    return overlap


def pooled(trace: Trace, blocks: int) -> int:
    """Tokens that one cache of so many blocks finds, requests one after the other."""
    cache = _Lru(blocks)
    return _found(trace, lambda: cache)


def _at_random(trace: Trace, engines: int, blocks: int) -> int:
    draw = random.Random(1)
    caches = [_Lru(blocks) for _ in range(engines)]
    return _found(trace, lambda: draw.choice(caches))


def _found(trace: Trace, choose: Callable[[], _Lru]) -> int:
    """Tokens found when each request uses the cache that is chosen for it."""
    size = trace.block_tokens
    return size * sum(
        choose().use(arrival.blocks, _findable(arrival.prompt_tokens, size)) for arrival in trace.arrivals
    )


def ceiling(trace: Trace, blocks: int) -> int:
    """Tokens that no cache or caches of so many blocks in all can find more of, however requests are spread
    and whatever is evicted.

    A block found was kept since it was last used. So this is to choose as many as possible of these intervals
    so that at no time more than `blocks` of them overlap. Taking them as they come, and when there are too
    many giving up those that end last, is best: Belady's rule (IBM Systems Journal 5(2), 1966). That prompts
    are found from their start only, and that running requests need blocks too, makes it less.
    """
    ends = _next_uses(trace)
    due = [0] * (len(ends) + 1)  # blocks kept for the request of that index
    furthest: list[int] = []  # heap of negated indices
    kept = found = 0
    for index, next_uses in enumerate(ends):
        found += due[index]
        kept -= due[index]
        for end, count in next_uses.items():
            if not due[end]:
                heappush(furthest, -end)
            due[end] += count
            kept += count
        while kept > blocks:
            end = -furthest[0]
            given_up = min(due[end], kept - blocks)
            due[end] -= given_up
            kept -= given_up
            if not due[end]:
                heappop(furthest)
    return found * trace.block_tokens


def _next_uses(trace: Trace) -> list[Counter[int]]:
    """For each request, how many of its blocks are next of use for which request."""
    size = trace.block_tokens
    ends: list[Counter[int]] = []
    coming: dict[int, int] = {}
    for index in range(len(trace.arrivals) - 1, -1, -1):
        arrival = trace.arrivals[index]
        uses = Counter(map(coming.get, arrival.blocks))
        ends.append(Counter({end: count for end, count in uses.items() if end is not None and end >= 0}))
        findable = _findable(arrival.prompt_tokens, size)
        coming.update(dict.fromkeys(arrival.blocks, index))
        # The last token is computed whatever was kept.
        coming.update(dict.fromkeys(arrival.blocks[findable:], -1))
    ends.reverse()
    return ends


class _Lru:
    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def use(self, keys: Sequence[int], findable: int) -> int:
        """How many of the first `findable` keys are there; then all are."""
        blocks = self._blocks
        found = 0
        for key in keys[:findable]:
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


def _findable(prompt_tokens: int, size: int) -> int:
    """Blocks of a prompt that may be found: not the one with the last token, which is always computed."""
    return (prompt_tokens - 1) // size


def _named(bounds: Sequence[float], unit: str, shares: Sequence[float]) -> dict[str, float]:
    names = [*(f"up to {bound:g} {unit}" for bound in bounds), f"over {bounds[-1]:g} {unit}"]
    return dict(zip(names, shares, strict=True))


def _carrying(shares: list[int], part: float) -> int:
    wanted, have = part * sum(shares), 0
    for count, share in enumerate(shares, 1):
        have += share
        if have >= wanted:
            return count
    return len(shares)


def _verdict(has_prefixes: bool, reusable: float, together: float, by_chance: float, median: float) -> str:
    if not has_prefixes:
        return "Unknown: this trace does not say which prompts begin alike."
    if reusable < LITTLE:
        return (
            f"Little: only {reusable:.1%} of prompt tokens were seen before, prompts are nearly all unique. "
            "Route by load."
        )
    if together < LITTLE:
        return (
            f"Little: {reusable:.1%} of prompt tokens come again, but so late that these engines' caches "
            f"have lost them: even as one cache they find {together:.1%}. More KV cache would help; routing "
            "alone will not."
        )
    if together - by_chance < LITTLE:
        return (
            f"Little: engines find {by_chance:.1%} wherever requests go, and as one cache {together:.1%}. "
            "What prompts share is in every cache already."
        )
    less = 1 - (1 - together) / (1 - by_chance)
    text = (
        f"Yes: routed well, these engines find about {together:.1%} of prompt tokens in their caches, "
        f"{by_chance:.1%} when requests go anywhere. That is {less:.0%} less prefill work."
    )
    if median < SHORT_TOKENS:
        text += (
            f" But half of the prompts have fewer than {median + 1} tokens: first tokens come fast anyway."
        )
    if reusable > 2 * together:
        text += (
            f" {reusable:.1%} come again, most of them too late for these caches: more KV cache would gain "
            "more than any routing."
        )
    return text
