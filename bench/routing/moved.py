"""How many prefixes another engine gets because one joined or left.

A prefix is the deepest block of a request that was seen before the change; it has moved if the first request
after the change that brings it again is served by another engine than the last one before. Some move without
any change, since loads differ: that share, of the same requests in a run without the change, is taken off.
"""

from __future__ import annotations

from extproc.replay.arrival import Trace
from extproc.replay.run import Outcome


def moved(trace: Trace, changed: Outcome, unchanged: Outcome, at: float) -> float:
    """Share of known prefixes that moved because of the change at `at` (seconds of the run)."""
    return max(0.0, _share(trace, changed, at) - _share(trace, unchanged, at))


def _share(trace: Trace, outcome: Outcome, at: float) -> float:
    last: dict[int, int] = {}
    done: set[int] = set()
    moved = 0
    engines = outcome.engine.tolist()
    for arrival, when, engine in zip(trace.arrivals, outcome.at.tolist(), engines, strict=True):
        if when < at:
            last.update(dict.fromkeys(arrival.blocks, engine))
            continue
        known = [block for block in arrival.blocks if block in last]
        if known and known[-1] not in done:
            done.add(known[-1])
            moved += last[known[-1]] != engine
    return moved / len(done) if done else 0.0
