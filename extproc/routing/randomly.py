"""RANDOM: every eligible endpoint is as likely as any other."""

from __future__ import annotations

import random
from typing import Final

import numpy as np

from extproc.pool.snapshot import Snapshot
from extproc.prefix import BlockKeys
from extproc.routing.pick import EMPTY, SHED, Foreseen, Pick
from extproc.routing.rendezvous import prefer, weights
from extproc.routing.spill import SpillRule

_ONE = 2.0**64


class Randomly:
    """A uniform choice. The endpoints to retry on are in random order too.

    An endpoint that is eased in takes part with a probability of its share.
    """

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
        merits = weights(draw.getrandbits(64), endpoints.hashes)
        if endpoints.ease is not None:
            takes_part = weights(draw.getrandbits(64), endpoints.hashes) < endpoints.ease * _ONE
            merits = prefer(merits, takes_part)
        order = self._rule.any_with_room(merits, endpoints)
        if order is None:
            return SHED
        return Pick(tuple([endpoints.addresses[index] for index in order]), "random")

    def served(self, keys: BlockKeys, address: str) -> None:
        """As in `Strategy`: nothing is learnt."""

    def foresee(self, keys: BlockKeys | None, endpoints: Snapshot, draw: random.Random) -> Foreseen:
        """As in `Strategy`."""
        pick = self.pick(keys, endpoints, draw)
        return Foreseen(pick, self._rule.full(endpoints), self._rule.max_in_flight)
