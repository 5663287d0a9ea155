"""LEAST_OUTSTANDING_REQUESTS: the endpoint with the fewest requests in flight."""

from __future__ import annotations

import random
from typing import Final

import numpy as np

from extproc.pool.snapshot import Snapshot
from extproc.prefix import BlockKeys
from extproc.routing.pick import EMPTY, SHED, Foreseen, Pick
from extproc.routing.rendezvous import weights
from extproc.routing.spill import SpillRule


class LeastOutstanding:
    """The least busy endpoint, ties by chance. The endpoints to retry on are the next least busy."""

    name: Final = "LEAST_OUTSTANDING_REQUESTS"
    wants_keys: Final = False
    prefix_length: Final[int | None] = None

    def __init__(self, rule: SpillRule) -> None:
        self._rule = rule

    def pick(self, keys: BlockKeys | None, endpoints: Snapshot, draw: random.Random) -> Pick:
        """As in `Strategy`; `keys` are not looked at."""
        if not np.count_nonzero(endpoints.eligible):
            return EMPTY
        order = self._rule.least_busy(weights(draw.getrandbits(64), endpoints.hashes), endpoints)
        if order is None:
            return SHED
        return Pick(tuple([endpoints.addresses[index] for index in order]), "load")

    def served(self, keys: BlockKeys, address: str) -> None:
        """As in `Strategy`: nothing is learnt."""

    def foresee(self, keys: BlockKeys | None, endpoints: Snapshot, draw: random.Random) -> Foreseen:
        """As in `Strategy`."""
        pick = self.pick(keys, endpoints, draw)
        return Foreseen(pick, self._rule.full(endpoints), self._rule.max_in_flight)
