"""RANDOM: every eligible endpoint is as likely as any other."""

from __future__ import annotations

import random
from typing import Final

import numpy as np

from extproc.pool.snapshot import Snapshot
from extproc.prefix import BlockKeys
from extproc.routing.pick import EMPTY, SHED, Pick
from extproc.routing.rendezvous import weights
from extproc.routing.spill import SpillRule


class Randomly:
    """A uniform choice. The endpoints to retry on are in random order too."""

    name: Final = "RANDOM"
    wants_keys: Final = False
    prefix_length: Final[int | None] = None

    def __init__(self, rule: SpillRule) -> None:
        self._rule = rule

    def pick(self, keys: BlockKeys | None, endpoints: Snapshot, draw: random.Random) -> Pick:
        """As in `Strategy`; `keys` are not looked at."""
        if not np.count_nonzero(endpoints.eligible):
            return EMPTY
        # The HRW order of a random key is a random permutation.
        order = self._rule.any_with_room(weights(draw.getrandbits(64), endpoints.hashes), endpoints)
        if order is None:
            return SHED
        return Pick(tuple([endpoints.addresses[index] for index in order]), "random")
