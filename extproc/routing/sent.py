"""Which endpoint was sent which blocks: what the KV caches probably hold.

For each block key there is one number. Its low bits count the requests that had the block; bit i above them
says that the endpoint in slot i was sent it. Keys live in two generations: when the current one is full it
becomes the previous one, and what was in the previous one and was not used since is forgotten. Caches forget
by least recent use; remembering a little longer than they do costs nothing, less long costs hits, so this
needs no exact order.

A prompt is entered with its whole chain. So within a generation a key is never known without those above it,
and along a chain counts only fall and endpoints only drop out: the places where that happens are found by
bisection.

A block is popular when more requests have it than half of what one endpoint serves. Sooner or later every
endpoint will have it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TOKEN_BYTES = 4
"""Bytes of text per token, about what byte-pair vocabularies average on English text."""
GENERATION_BYTES = 40 * 1024 * 1024
"""Memory of a generation, and so half the limit of the table. A key takes some 140 bytes (dict slot, key,
number) in small pools, and one byte more per 7.5 endpoints: 300,000 keys, some 7,500
prompts of 8 KB, at 40 endpoints, and 150,000 at 1,000."""
KEY_BYTES = 140
POPULAR_AT_LEAST = 16
"""Requests that a popular block must have had: in the first minutes all shares are large."""

_COUNT_BITS = 20
_COUNT = (1 << _COUNT_BITS) - 1
_FEW = 4
"""Up to so many endpoints are picked out of a mask one by one."""


class Match(NamedTuple):
    """What endpoints have of a prompt. Tokens are counted from its start."""

    covered: NDArray[np.float64]
    """By endpoint slot: tokens of the longest run of blocks that it was sent."""
    longest: float
    """The largest of them."""
    popular: float
    """Tokens of the longest run of popular blocks."""
    home_key: int
    """The first key that is not popular; the last, if all are."""
    entries: list[int]
    """The numbers of the leading keys that are known, both generations taken together."""


class Sent:
    """Bits of endpoints by block key; bits are `slots`, small numbers that the caller gives to endpoints."""

    def __init__(self, generation_bytes: int = GENERATION_BYTES) -> None:
        self._generation_bytes = generation_bytes
        self._current: dict[int, int] = {}
        self._previous: dict[int, int] = {}
        self._requests = 0
        self._carried = 0

    def __len__(self) -> int:
        """Keys held, those in both generations twice."""
        return len(self._current) + len(self._previous)

    def match(self, keys: Sequence[int], ends: Sequence[int], slots: int) -> Match:
        """What the first `slots` endpoints (one or more) have of a prompt with one key or more."""
        entries = self._look_up(keys)
        covered = np.zeros(slots)
        if not entries:
            return Match(covered, 0.0, 0.0, keys[0], entries)
        enough = max(POPULAR_AT_LEAST, (self._carried + self._requests) // (2 * slots) + 1)
        popular = 0
        if entries[0] & _COUNT >= enough:
            popular = bisect_left(entries, True, key=lambda entry: entry & _COUNT < enough)
        longest = 0.0
        everyone = (1 << slots) - 1
        start = 0
        while start < len(entries):
            have = entries[start] >> _COUNT_BITS & everyone
            if not have:
                break
            # All that have this block have those before it, so a later run overwrites an earlier one.
            start = _run_end(entries, start, have, everyone)
            longest = float(ends[start - 1] // TOKEN_BYTES)
            _assign(covered, have, slots, longest)
        return Match(
            covered,
            longest,
            float(ends[popular - 1] // TOKEN_BYTES) if popular else 0.0,
            keys[min(popular, len(keys) - 1)],
            entries,
        )

    def add(self, keys: Sequence[int], entries: Sequence[int], slot: int, slots: int) -> None:
        """`slot` was sent the prompt for which `match` gave these `entries`."""
        if (len(self._current) + len(keys)) * (KEY_BYTES + slots * 2 // 15) > self._generation_bytes:
            self._previous, self._current = self._current, {}
            self._carried, self._requests = (self._carried + self._requests) // 2, 0
            entries = [_half(entry) for entry in entries]
        self._requests += 1
        bit = 1 << slot + _COUNT_BITS
        new = [entry + 1 | bit for entry in entries]
        if len(new) < len(keys):
            new.extend([bit + 1] * (len(keys) - len(new)))
        self._current.update(zip(keys, new, strict=True))

    def forget(self, slots: Iterable[int]) -> None:
        """These slots will be given to other endpoints."""
        keep = ~sum(1 << slot + _COUNT_BITS for slot in slots)
        for generation in (self._current, self._previous):
            for key, entry in generation.items():
                generation[key] = entry & keep

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
        return entries


def _half(entry: int) -> int:
    """The entry with half its count: what a generation hands on to the next."""
    return entry & ~_COUNT | (entry & _COUNT) >> 1


def _run_end(entries: list[int], start: int, have: int, everyone: int) -> int:
    """Where in the chain another set of endpoints begins than `have`, that of `start`."""
    if entries[-1] >> _COUNT_BITS & everyone == have:
        return len(entries)
    return bisect_left(entries, True, start + 1, key=lambda entry: entry >> _COUNT_BITS & everyone != have)


def _assign(covered: NDArray[np.float64], mask: int, slots: int, tokens: float) -> None:
    if mask.bit_count() <= _FEW:
        while mask:
            low = mask & -mask
            covered[low.bit_length() - 1] = tokens
            mask ^= low
        return
    raw = np.frombuffer(mask.to_bytes(-(-slots // 8), "little"), dtype=np.uint8)
    covered[np.unpackbits(raw, count=slots, bitorder="little").astype(np.bool_)] = tokens
