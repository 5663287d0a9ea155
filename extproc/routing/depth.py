"""How much of a prompt places it: the adaptive depth of PREFIX_AWARE.

A prompt is a chain of block keys, shallow to deep, and the key that places it is one of them. A shallow key
keeps all that begins alike on one endpoint; where too many begin alike (a system prompt that all share),
that is no choice at all, and the key has to lie deeper, in what tells them apart. So every key counts how
often it was seen lately.

Hot. A key is hot when it has more than half of an endpoint's fair share of the traffic (share > 0.5 / N)
and was seen often enough that splitting what is behind it pays: up to N endpoints will compute that block
anew. The adaptive key of a prompt is its first key that is not hot: all that is popular is split by what
follows, and nothing else is. If all keys are hot, the prompt itself is popular; then its key is the
shallowest about as popular as the whole: an identical prompt has one key however often it comes, and one
behind a shared system prompt is not placed by that.

Messages. Where a whole message ends and prompts go on differently, it is known sooner that the message is
shared and what follows is not: a system prompt. There a key is hot already when it has most of the traffic,
as soon as a few requests have shown it. Otherwise the first conversations behind a system prompt, dozens of
them, would all be placed by it, and stay together.

Anchors. What became popular must not move what has been placed. Each key remembers its anchor: the depth at
which the request that brought it first was placed. A prompt goes by the anchor of its deepest known key, so
the next turn of a conversation follows the turns before, whatever became hot meanwhile. Only where that key
is hot itself and something unknown follows it does the anchor say nothing, and the adaptive key decides.
The caller may `Depths.note` another depth than the anchor when the anchor's endpoint has no room; the
prompt's own part is then anchored there for good.

Forgetting. Counts live in two dicts, the current generation and the previous one. A generation ends after
`GENERATION_REQUESTS` requests or at `GENERATION_KEYS` keys. A key seen for the first time in a generation
carries over half its count; one not seen for a whole generation is gone. So counts halve each generation,
memory has a fixed limit, and there is no list to keep in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

GENERATION_REQUESTS = 2_000
"""Half-life of the counts, in requests."""
GENERATION_KEYS = 131_072
"""Keys in a generation, and so half the limit of the table: 20 to 28 MB in all, at 76 bytes per key of long
prompts (two thirds of it the key itself, the rest its slot) and 108 per key of prompts with one key each.
Prompts of 8 KB have some 40 keys: 2,000 of them fit."""
HOT_PER_ENDPOINT = 8
"""Requests for each endpoint that will compute a block anew when what is behind it is split."""
HOT_ENOUGH = 64
"""Requests after which a key may be hot in a pool of any size. In large pools 8 per endpoint are more than
a key with a fair share of a generation ever gets, and what all share would never be split."""

SHARED_MESSAGE = 4
"""Requests after which a message that most of the traffic begins with counts as shared. Of 50 equally popular
prompts in random order, one comes to be most of so many by chance in one start of 3,000."""

# An entry is one int: count << _ANCHOR_BITS | anchor. Below 2^30 it takes 28 bytes, and all new keys of a
# prompt share one object.
_ANCHOR_BITS = 12
_ANCHOR = (1 << _ANCHOR_BITS) - 1
_SEEN_ONCE = 1 << _ANCHOR_BITS


class Sight(NamedTuple):
    """What the table knows of one prompt."""

    depth: int
    """Index in the chain of the key that should place the prompt."""
    adaptive: int
    """Index of the key that would place it if it had no anchor."""
    known: list[int]
    """Entries of the keys known before, shallow to deep, before this request."""


class Depths:
    """Counts and anchors of the block keys seen lately, which depend on nothing but the calls.

    `look`, then `note`, for each request. Holds 2 * `generation_keys` keys at most; no chain may be longer
    than one generation.
    """

    def __init__(
        self, generation_requests: int = GENERATION_REQUESTS, generation_keys: int = GENERATION_KEYS
    ) -> None:
        self._generation_requests = generation_requests
        self._generation_keys = generation_keys
        self._current: dict[int, int] = {}
        self._previous: dict[int, int] = {}
        self._requests = 0
        self._carried = 0

    def __len__(self) -> int:
        """Keys held, those in both generations twice."""
        return len(self._current) + len(self._previous)

    def look(self, chain: Sequence[int], endpoints: int, segments: Sequence[int] = ()) -> Sight:
        """Where to place the prompt with this chain in a pool of so many endpoints (neither is zero)."""
        # Here and not in `note`: the entries that are found now are stored there as they are.
        self._begin_generation_if_full(len(chain))
        current, previous = self._current.get, self._previous.get
        known: list[int] = []
        # A key is never seen without those above it, so behind an unknown key all are unknown.
        for key in chain:
            entry = current(key)
            if entry is None:
                entry = previous(key)
                if entry is None:
                    break
                entry = (entry >> _ANCHOR_BITS + 1) << _ANCHOR_BITS | (entry & _ANCHOR)
            known.append(entry)
        if not known:
            return Sight(0, 0, known)
        hot = self._hot(endpoints) << _ANCHOR_BITS
        deepest = known[-1]
        if len(known) < len(chain):
            if deepest >= hot or (len(known) in segments and deepest >> _ANCHOR_BITS >= self._shared()):
                return Sight(len(known), len(known), known)
            enough = hot
        elif deepest >= hot:
            # All hot: the shallowest key seen at most twice as often as the whole.
            enough = (2 * (deepest >> _ANCHOR_BITS) + 1) << _ANCHOR_BITS
        else:
            enough = hot
        return Sight(deepest & _ANCHOR, _first_below(known, enough), known)

    def note(self, chain: Sequence[int], sight: Sight, depth: int) -> None:
        """Count the prompt as placed at `depth`, which is one of the two that `look` gave as its
        `sight`.
        """
        self._requests += 1
        known = sight.known
        entries = [entry + _SEEN_ONCE for entry in known]
        if depth != sight.depth:
            entries[depth:] = [entry & ~_ANCHOR | depth for entry in entries[depth:]]
        if len(known) < len(chain):
            entries.extend([_SEEN_ONCE | depth] * (len(chain) - len(known)))
        self._current.update(zip(chain, entries, strict=True))

    def _begin_generation_if_full(self, coming: int) -> None:
        full = len(self._current) + coming > self._generation_keys
        if self._requests >= self._generation_requests or full:
            self._carried = (self._carried + self._requests) // 2
            self._requests = 0
            self._previous = self._current
            self._current = {}

    def _hot(self, endpoints: int) -> int:
        """The least count at which a key is hot."""
        total = self._carried + self._requests
        return max(min(HOT_PER_ENDPOINT * endpoints, HOT_ENOUGH), total // (2 * endpoints) + 1)

    def _shared(self) -> int:
        """The least count at which a whole message is shared by most of the traffic."""
        return max(SHARED_MESSAGE, (self._carried + self._requests) // 2 + 1)


def _first_below(entries: list[int], limit: int) -> int:
    """Index of the first entry below `limit`; the last is. Counts never rise from shallow to deep."""
    low, high = 0, len(entries) - 1
    while low < high:
        middle = (low + high) // 2
        if entries[middle] < limit:
            high = middle
        else:
            low = middle + 1
    return low
