"""Which endpoint was sent which blocks: what the KV caches probably hold.

For each block key there is one number. Its low bits count the requests that had the block; bit i above them
says that the endpoint in slot i was sent it. Keys live in two generations: when the current one is full it
becomes the previous one, and what was in the previous one and was not used since is forgotten. Caches forget
by least recent use; remembering a little longer than they do costs nothing, less long costs hits, so this
needs no exact order.

A prompt is entered with its whole chain. So within a generation a key is never known without those above it,
and along a chain counts only fall and endpoints only drop out: the places where that happens are found by
bisection.

The slot of an endpoint that left is given to another only after two generations, when no number has its bit
any more: to clear it in all of them would hold requests up for a third of a second.

A block is popular when more requests have it than half of what one endpoint serves. Sooner or later every
endpoint will have it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TOKEN_BYTES = 4
"""Bytes of text per token, about what byte-pair vocabularies average on English text."""
GENERATION_BYTES = 40 * 1024 * 1024
"""Memory of a generation, and so half the limit of the table. A key takes some 140 bytes (dict slot, key,
number) in small pools, and one byte more per 7.5 endpoints: 300,000 keys, some 7,500
prompts of 8 KB, at 40 endpoints, and 150,000 at 1,000."""
GENERATION_REQUESTS = (1 << 19) - 1
"""A generation of the same few keys ends after so many requests: each has half the counts of the one before,
so none reaches twice as many."""
SPARE_SLOTS = 64
"""When more endpoints than this, and than the pool has, have left within a generation, it ends. So slots are
four times the endpoints at most, and there are 128 in any case."""
KEY_BYTES = 140
POPULAR_AT_LEAST = 16
"""Requests that a popular block must have had: in the first minutes all shares are large."""

_COUNT_BITS = 20
_COUNT = (1 << _COUNT_BITS) - 1
_FEW = 12
"""Up to so many endpoints are picked out of a mask one by one."""


class Match(NamedTuple):
    """What endpoints have of a prompt. Tokens are counted from its start."""

    covered: NDArray[np.float64]
    """By endpoint slot: tokens of the longest run of blocks that it was sent."""
    longest: float
    """The largest of them."""
    popular: float
    """Tokens of the longest run of popular blocks."""
    share: float
    """Part of all requests that have the last of these; 0: there is none."""
    home_key: int
    """The first key that is not popular; the last, if all are."""
    entries: list[int]
    """The numbers of the leading keys that are known, both generations taken together."""


class Sent:
    """Bits of endpoints by block key."""

    def __init__(self, generation_bytes: int = GENERATION_BYTES) -> None:
        self._generation_bytes = generation_bytes
        self._current: dict[int, int] = {}
        self._previous: dict[int, int] = {}
        self._requests = 0
        self._carried = 0
        self.slots: dict[str, int] = {}
        """The bit of each endpoint, by address. Only to be read."""
        self.width = 0
        """Bits that are in use, and length of `Match.covered`: more than there are endpoints when some have
        left."""
        self._free: list[int] = []
        self._left: list[int] = []
        self._left_before: list[int] = []
        self._clear = -1

    def __len__(self) -> int:
        """Keys held, those in both generations twice."""
        return len(self._current) + len(self._previous)

    def set_endpoints(self, addresses: Iterable[str]) -> None:
        """These are the endpoints. Of those that stay all is kept; of those that left nothing is known any
        more, and if they come back they are new.
        """
        members = dict.fromkeys(addresses)
        self._left += [self.slots.pop(address) for address in [*self.slots] if address not in members]
        if len(self._left) > max(SPARE_SLOTS, len(members)):
            self._turn()
        for address in members:
            if address not in self.slots:
                if not self._free:
                    self._free.append(self.width)
                    self.width += 1
                self.slots[address] = self._free.pop()
        self._clear = ~sum(1 << slot + _COUNT_BITS for slot in (*self._left, *self._left_before))

    def with_endpoints(self, addresses: Iterable[str]) -> Sent:
        """This table as it would be if these were the endpoints, to be matched with and not added to: the
        numbers are shared. Nothing changes here.
        """
        table = copy(self)
        table.slots = dict(self.slots)
        table._free, table._left, table._left_before = [*self._free], [*self._left], [*self._left_before]
        table.set_endpoints(addresses)
        return table

    def match(self, keys: Sequence[int], ends: Sequence[int]) -> Match:
        """What the endpoints (one or more) have of a prompt with one key or more."""
        entries = self._look_up(keys)
        slots = self.width
        covered = np.zeros(slots)
        if not entries:
            return Match(covered, 0.0, 0.0, 0.0, keys[0], entries)
        requests = self._carried + self._requests
        enough = max(POPULAR_AT_LEAST, requests // (2 * len(self.slots)) + 1)
        popular, share = 0, 0.0
        if entries[0] & _COUNT >= enough:
            popular = bisect_left(entries, True, key=lambda entry: entry & _COUNT < enough)
            share = (entries[popular - 1] & _COUNT) / requests
        longest = 0.0
        start = 0
        while start < len(entries):
            have = entries[start] >> _COUNT_BITS
            if not have:
                break
            # All that have this block have those before it, so a later run overwrites an earlier one.
            start = _run_end(entries, start, have)
            longest = float(ends[start - 1] // TOKEN_BYTES)
            _assign(covered, have, slots, longest)
        return Match(
            covered,
            longest,
            float(ends[popular - 1] // TOKEN_BYTES) if popular else 0.0,
            share,
            keys[min(popular, len(keys) - 1)],
            entries,
        )

    def add(self, keys: Sequence[int], entries: Sequence[int], address: str) -> None:
        """`address`, one of the endpoints, was sent the prompt for which `match` gave these `entries`."""
        size = (len(self._current) + len(keys)) * (KEY_BYTES + self.width * 2 // 15)
        if size > self._generation_bytes or self._requests >= GENERATION_REQUESTS:
            self._turn()
            entries = [_half(entry) for entry in entries]
        self._requests += 1
        bit = 1 << self.slots[address] + _COUNT_BITS
        new = [entry + 1 | bit for entry in entries]
        if len(new) < len(keys):
            new.extend([bit + 1] * (len(keys) - len(new)))
        self._current.update(zip(keys, new, strict=True))

    def also(self, keys: Sequence[int], address: str) -> None:
        """`address`, one of the endpoints, has a prompt too that was entered for another one."""
        bit = 1 << self.slots[address] + _COUNT_BITS
        current = self._current
        for key in keys:
            entry = current.get(key)
            if entry is None:  # a generation has begun since
                break
            current[key] = entry | bit

    def _turn(self) -> None:
        """Begin a generation."""
        self._previous, self._current = self._current, {}
        self._carried, self._requests = (self._carried + self._requests) // 2, 0
        self._free += self._left_before
        self._left_before, self._left = self._left, []
        self._clear = ~sum(1 << slot + _COUNT_BITS for slot in self._left_before)

    def _look_up(self, keys: Sequence[int]) -> list[int]:
        current, previous = self._current.get, self._previous.get
        entries: list[int] = []
        for key in keys:
            entry = current(key)
            if entry is None:
                entry = previous(key)
                if entry is None:
                    break
                entry = _half(entry)
            entries.append(entry)
        return entries if self._clear == -1 else [entry & self._clear for entry in entries]


def holders(entry: int) -> int:
    """How many endpoints were sent the block of one of `Match.entries`."""
    return (entry >> _COUNT_BITS).bit_count()


def _half(entry: int) -> int:
    """The entry with half its count: what a generation hands on to the next."""
    return entry & ~_COUNT | (entry & _COUNT) >> 1


def _run_end(entries: list[int], start: int, have: int) -> int:
    """Where in the chain another set of endpoints begins than `have`, that of `start`."""
    if entries[-1] >> _COUNT_BITS == have:
        return len(entries)
    return bisect_left(entries, True, start + 1, key=lambda entry: entry >> _COUNT_BITS != have)


def _assign(covered: NDArray[np.float64], mask: int, slots: int, tokens: float) -> None:
    count = mask.bit_count()
    if count == slots:
        covered.fill(tokens)
    elif count <= _FEW:
        while mask:
            low = mask & -mask
            covered[low.bit_length() - 1] = tokens
            mask ^= low
    else:
        raw = np.frombuffer(mask.to_bytes(-(-slots // 8), "little"), dtype=np.uint8)
        np.putmask(covered, np.unpackbits(raw, count=slots, bitorder="little").view(np.bool_), tokens)
