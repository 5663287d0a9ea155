"""Which endpoint was sent which blocks: what the KV caches probably hold.

For each block key there is one number. Its low bits count the requests that had the block; bit i above them
says that endpoint i was sent it. So one walk down a prompt's chain finds the longest match of every endpoint
at once. Keys live in two generations: when the current one has grown to what all caches hold together, it
becomes the previous one, and what was in the previous one and was not used since is forgotten. The caches
forget by least recent use; remembering a little longer than they do costs nothing, less long costs hits, so
this needs no exact order.

A block is popular when more requests have it than half of what one endpoint serves. Sooner or later every
endpoint will have it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from extproc.prefix import BlockKeys

TOKEN_BYTES = 4
"""Bytes of text per token, about what byte-pair vocabularies average on English text."""
GENERATION_KEYS = 262_144
"""Keys in a generation whatever the caches' size: with two dict slots of about 140 bytes each (key, number of
up to 40 endpoints), 73 MB in all. In larger pools a number takes 4 bytes more per 30 endpoints."""
POPULAR_AT_LEAST = 16
"""Requests that a popular block must have had: in the first minutes all shares are large."""

_COUNT_BITS = 20
_COUNT = (1 << _COUNT_BITS) - 1


class Match(NamedTuple):
    """What endpoints have of a prompt, in tokens from its start."""

    covered: NDArray[np.float64]
    """By endpoint slot: tokens of the longest run of blocks that it was sent."""
    popular: float
    """Tokens of the longest run of popular blocks."""


class Sent:
    """Bits of endpoints by block key; bits are `slots`, small numbers that the caller gives to endpoints."""

    def __init__(self, generation_keys: int = GENERATION_KEYS) -> None:
        self._generation_keys = generation_keys
        self._current: dict[int, int] = {}
        self._previous: dict[int, int] = {}
        self._tokens = 0
        self._requests = 0
        self._requests_before = 0

    def __len__(self) -> int:
        """Keys held, those in both generations twice."""
        return len(self._current) + len(self._previous)

    def match(self, chain: BlockKeys, slots: int) -> Match:
        """What the first `slots` endpoints (one or more) have of a prompt."""
        found = np.zeros(slots)
        mask = (1 << slots) - 1
        current, previous = self._current.get, self._previous.get
        enough = max(POPULAR_AT_LEAST, (self._requests + self._requests_before) // (2 * slots) + 1)
        covered = popular = 0
        among_popular = True
        for key, end in zip(chain.keys, chain.ends, strict=True):
            now, before = current(key, 0), previous(key, 0)
            if among_popular:
                among_popular = (now & _COUNT) + (before & _COUNT) >= enough
                if among_popular:
                    popular = end // TOKEN_BYTES
            have = (now | before) >> _COUNT_BITS & mask
            if have != mask:
                if covered:
                    found[_bits(mask & ~have, slots)] = covered
                mask = have
                if not mask and not among_popular:
                    return Match(found, popular)
            covered = end // TOKEN_BYTES
        if mask:
            found[_bits(mask, slots)] = covered
        return Match(found, popular)

    def add(self, chain: BlockKeys, slot: int, capacity: float) -> None:
        """`slot` was sent this prompt. `capacity`: tokens that the caches of all endpoints hold together."""
        if self._tokens >= capacity or len(self._current) + len(chain.keys) > self._generation_keys:
            self._previous, self._current, self._tokens = self._current, {}, 0
            self._requests_before, self._requests = self._requests, 0
        self._requests += 1
        current = self._current
        bit = 1 << slot + _COUNT_BITS
        before = 0
        for key, end in zip(chain.keys, chain.ends, strict=True):
            have = current.get(key, 0)
            if not have & bit:
                have |= bit
                self._tokens += (end - before) // TOKEN_BYTES
            current[key] = have + 1 if have & _COUNT < _COUNT else have
            before = end

    def forget(self, slots: Sequence[int]) -> None:
        """These slots will be given to other endpoints."""
        keep = ~sum(1 << slot + _COUNT_BITS for slot in slots)
        for keys in (self._current, self._previous):
            for key, have in keys.items():
                keys[key] = have & keep


def _bits(mask: int, slots: int) -> NDArray[np.bool_]:
    raw = np.frombuffer(mask.to_bytes(-(-slots // 8), "little"), dtype=np.uint8)
    return np.unpackbits(raw, count=slots, bitorder="little").astype(np.bool_)
