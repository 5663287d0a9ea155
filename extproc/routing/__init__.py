"""Strategies: block keys and a pool snapshot in, ranked endpoints out.

This room is pure: no clock, no IO, and randomness only from the `random.Random` that is passed in. It knows
endpoints and nothing of gateways. `build` makes a strategy from the values of the configuration.
"""

from __future__ import annotations

from typing import Literal

from extproc.routing.fixed_prefix import FixedPrefix
from extproc.routing.least_outstanding import LeastOutstanding
from extproc.routing.pick import Strategy
from extproc.routing.prefix_aware import PrefixAware
from extproc.routing.randomly import Randomly
from extproc.routing.spill import Balance, SpillRule

__all__ = ["Balance", "Strategy", "build"]

DEFAULT_BALANCE = Balance()


def build(
    name: str,
    *,
    prefix_length: int | Literal["auto"] = "auto",
    concurrency_threshold: int = 256,
    balance: Balance | None = DEFAULT_BALANCE,
    max_in_flight: int | None = None,
    before: Strategy | None = None,
) -> Strategy:
    """The strategy called RANDOM, LEAST_OUTSTANDING_REQUESTS or PREFIX_AWARE; ValueError for another name.

    Only `max_in_flight` (requests per endpoint; None: never shed) concerns the first two. `balance`
    concerns PREFIX_AWARE with a number as `prefix_length` only; None switches that half of the spill rule
    off, see `spill`. With auto it remembers what was sent where: give the strategy that the new one replaces
    as `before`, and that is kept.
    """
    rule = SpillRule(concurrency_threshold, balance, max_in_flight)
    if name == Randomly.name:
        return Randomly(rule)
    if name == LeastOutstanding.name:
        return LeastOutstanding(rule)
    if name == PrefixAware.name:
        if prefix_length != "auto":
            return FixedPrefix(rule, prefix_length)
        return PrefixAware(
            concurrency_threshold, max_in_flight, before if isinstance(before, PrefixAware) else None
        )
    raise ValueError(f"strategy {name!r}: expected RANDOM, LEAST_OUTSTANDING_REQUESTS or PREFIX_AWARE")
