"""PREFIX_AWARE: equal prefixes go to the same endpoint while it has room."""

from __future__ import annotations

import random
from typing import Final, Literal

import numpy as np

from extproc.pool.snapshot import Snapshot
from extproc.prefix import BlockKeys
from extproc.routing.depth import Depths
from extproc.routing.least_outstanding import LeastOutstanding
from extproc.routing.pick import EMPTY, SHED, Pick
from extproc.routing.rendezvous import weights
from extproc.routing.spill import Ranking, SpillRule

REMEMBERED_RANKINGS = 8_192
"""Rankings that are kept: about 250 bytes each, 2 MB in all. When full they are dropped, and come again."""


class PrefixAware:
    """Rendezvous hashing of one of the prompt's block keys, under the spill rule.

    With a prefix length the chain was cut there and its last key places the prompt. With "auto" the depth
    follows the traffic (see `depth`). Either way the endpoint is the key's HRW choice among the endpoints
    of the moment, so one that joins or leaves moves its own share of the prefixes only. Prompts without
    keys go to the least busy.
    """

    name: Final = "PREFIX_AWARE"
    wants_keys: Final = True

    def __init__(
        self,
        rule: SpillRule,
        prefix_length: int | Literal["auto"] = "auto",
        depths: Depths | None = None,
    ) -> None:
        self._rule = rule
        self._by_load = LeastOutstanding(rule)
        self._ranked_addresses: tuple[str, ...] = ()
        self._rankings: dict[int, Ranking] = {}
        self.prefix_length: int | None = None if prefix_length == "auto" else prefix_length
        self.depths: Depths | None = None
        """What was learnt of the traffic; None with a prefix length."""
        if self.prefix_length is None:
            self.depths = Depths() if depths is None else depths

    def pick(self, keys: BlockKeys | None, endpoints: Snapshot, draw: random.Random) -> Pick:
        """As in `Strategy`. Unless nobody can take the request, it counts as traffic."""
        if keys is None or not keys.keys:
            return self._by_load.pick(None, endpoints, draw)
        if not np.count_nonzero(endpoints.eligible):
            return EMPTY
        chain = keys.keys
        if self.depths is None:
            depth = len(chain) - 1
            ranking = self._rank(chain[depth], endpoints)
            return SHED if ranking is None else _pick(ranking, endpoints, depth)
        # All endpoints and not just the eligible: a suspect must not shift the depth of every prefix.
        sight = self.depths.look(chain, len(endpoints), keys.segments)
        depth = sight.depth
        ranking = self._rank(chain[depth], endpoints)
        if ranking is None:
            return SHED
        if ranking.spilled and sight.adaptive != depth:
            # Too much is anchored there. If its own part has a home with room, the prefix moves there for
            # good.
            other = self._rank(chain[sight.adaptive], endpoints)
            if other is not None and not other.spilled:
                depth, ranking = sight.adaptive, other
        self.depths.note(chain, sight, depth)
        return _pick(ranking, endpoints, depth)

    def _rank(self, key: int, endpoints: Snapshot) -> Ranking | None:
        """The spill rule's ranking. A key's HRW order holds for as long as the endpoints do, and a prefix
        that is worth routing comes often: it is kept for the case that its first choice has room.
        """
        if endpoints.addresses is not self._ranked_addresses:
            self._ranked_addresses = endpoints.addresses
            self._rankings.clear()
        calm = np.count_nonzero(endpoints.eligible) == len(endpoints.eligible)
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


def _pick(ranking: Ranking, endpoints: Snapshot, depth: int) -> Pick:
    addresses = endpoints.addresses
    return Pick(
        tuple([addresses[index] for index in ranking.order]),
        "spill" if ranking.spilled else "prefix",
        depth,
        addresses[ranking.home],
    )
