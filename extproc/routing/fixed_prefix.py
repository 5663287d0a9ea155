"""PREFIX_AWARE with a prefix length: the first so many characters choose the endpoint, and nothing else."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

import numpy as np

from extproc.pool.snapshot import Snapshot
from extproc.prefix import BlockKeys
from extproc.routing.least_outstanding import LeastOutstanding
from extproc.routing.pick import EMPTY, SHED, Foreseen, Pick
from extproc.routing.rendezvous import best, weights
from extproc.routing.spill import Ranking, SpillRule

REMEMBERED_RANKINGS = 8_192
"""Rankings that are kept: about 250 bytes each, 2 MB in all. When full they are dropped, and come again."""


@dataclass(frozen=True, slots=True)
class Placement(Foreseen):
    """What places a prompt that has keys."""

    key: int
    """The key of its first characters."""
    order: tuple[str, ...]
    """Every endpoint in the key's HRW order, whatever its load."""


class FixedPrefix:
    """Rendezvous hashing of the chain's last key, under the spill rule.

    The chain was cut at the prefix length. Nothing is learnt: replicas agree without a word, and an endpoint
    that joins or leaves moves its own share of the prefixes only. Prompts without keys go to the least busy.
    """

    name: Final = "PREFIX_AWARE"
    wants_keys: Final = True

    def __init__(self, rule: SpillRule, prefix_length: int) -> None:
        self._rule = rule
        self._by_load = LeastOutstanding(rule)
        self._ranked_addresses: tuple[str, ...] = ()
        self._rankings: dict[int, Ranking] = {}
        self.prefix_length: int | None = prefix_length

    def pick(self, keys: BlockKeys | None, endpoints: Snapshot, draw: random.Random) -> Pick:
        """As in `Strategy`."""
        if keys is None or not keys.keys:
            return self._by_load.pick(None, endpoints, draw)
        if not np.count_nonzero(endpoints.eligible):
            return EMPTY
        return _picked(self._rank(keys.keys[-1], endpoints), endpoints)

    def served(self, keys: BlockKeys, address: str) -> None:
        """As in `Strategy`: nothing is learnt."""

    def foresee(self, keys: BlockKeys | None, endpoints: Snapshot, draw: random.Random) -> Foreseen:
        """As in `Strategy`; a `Placement` if the prompt has keys and the pool an eligible endpoint."""
        if keys is None or not keys.keys or not np.count_nonzero(endpoints.eligible):
            return self._by_load.foresee(None, endpoints, draw)
        key = keys.keys[-1]
        merits = weights(key, endpoints.hashes)
        bound = self._rule.bound(endpoints.in_flight[endpoints.eligible])
        return Placement(
            _picked(self._rule.rank(merits, endpoints), endpoints),
            ~self._rule.room(endpoints, bound),
            bound,
            key,
            tuple([endpoints.addresses[index] for index in best(merits, len(endpoints))]),
        )

    def _rank(self, key: int, endpoints: Snapshot) -> Ranking | None:
        """The spill rule's ranking. A key's HRW order holds for as long as the endpoints do, and a prefix
        that is worth routing comes often: it is kept for the case that its first choice has room.
        """
        if endpoints.addresses is not self._ranked_addresses:
            self._ranked_addresses = endpoints.addresses
            self._rankings.clear()
        calm = endpoints.ease is None and np.count_nonzero(endpoints.eligible) == len(endpoints.eligible)
        if calm:
            known = self._rankings.get(key)
            if known is not None and self._rule.has_room_anyway(endpoints.in_flight.item(known.home)):
                return known
        ranking = self._rule.rank(weights(key, endpoints.hashes), endpoints)
        if calm and ranking is not None and not ranking.spilled:
            if len(self._rankings) >= REMEMBERED_RANKINGS:
                self._rankings.clear()
            self._rankings[key] = ranking
        return ranking


def _picked(ranking: Ranking | None, endpoints: Snapshot) -> Pick:
    if ranking is None:
        return SHED
    addresses = endpoints.addresses
    return Pick(
        tuple([addresses[index] for index in ranking.order]),
        "spill" if ranking.spilled else "prefix",
    )
