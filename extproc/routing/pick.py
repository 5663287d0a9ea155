"""What a strategy is and what it answers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from extproc.pool.snapshot import Snapshot
from extproc.prefix import BlockKeys

Reason = Literal["prefix", "spill", "new", "load", "random", "shed", "empty"]
"""Why a pick came out as it did, for metric labels and explanations.

prefix: where the prompt's prefix is. spill: that one was too busy, this is another. new: no endpoint was sent
more of the prompt than what many prompts share. load: the least busy. random: by chance. shed: every eligible
endpoint is full, answer 429. empty: there is no eligible endpoint.
"""

RETRIES = 4
"""Endpoints after the first choice, at most: more tries than that are an outage."""


class Pick(NamedTuple):
    """Where a request goes."""

    ranked: tuple[str, ...]
    """Addresses, distinct: the choice, then at most `RETRIES` to retry on, best first, suspects last. Empty
    for shed and empty."""
    reason: Reason
    uncached: float = 0.0
    """Tokens that the choice will have to compute, by estimate; 0 where the strategy makes none."""


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What a strategy would pick, and what it would go by; strategies that go by more add it."""

    pick: Pick
    full: NDArray[np.bool_]
    """By endpoint, in the order of the snapshot: it has as many requests in flight as make it come after
    others, or take no more."""
    bound: float | None
    """Requests in flight from which on an endpoint that is not eased in is full; None: none ever is."""


EMPTY: Final = Pick((), "empty")
SHED: Final = Pick((), "shed")


class Strategy(Protocol):
    """Ranks the endpoints of a snapshot for one request."""

    @property
    def name(self) -> str:
        """As the configuration spells it."""
        ...

    @property
    def wants_keys(self) -> bool:
        """Whether `pick` looks at keys; else they need not be made."""
        ...

    @property
    def prefix_length(self) -> int | None:
        """Characters of message text that the keys should cover; None: all."""
        ...

    def pick(self, keys: BlockKeys | None, endpoints: Snapshot, draw: random.Random) -> Pick:
        """Choose. `keys` None or without a key: nothing is known of the prompt. Never raises for valid
        input.
        """
        ...

    def served(self, keys: BlockKeys, address: str) -> None:
        """The prompt of a pick was computed by `address`, an endpoint of the pool that was not its choice."""
        ...

    def foresee(self, keys: BlockKeys | None, endpoints: Snapshot, draw: random.Random) -> Foreseen:
        """What `pick` would choose now, and why. Nothing is remembered of it: the strategy is as it was."""
        ...
