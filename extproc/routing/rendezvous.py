"""Rendezvous (highest random weight) hashing over arrays.

Each pair of key and endpoint has a weight; the endpoint with the highest is first choice. When an endpoint
leaves, only the keys that had it first move, each to its own second choice; when one joins, it takes its
share from all alike. Thaler and Ravishankar, "Using name-based mappings to increase hit rates", IEEE/ACM
ToN 6(1), 1998.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

# The finaliser of splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA
# 2014, with the constants of Stafford's mix 13 as in Vigna's reference code
# (https://prng.di.unimi.it/splitmix64.c). Arrays of no dimension, since numpy converts Python numbers anew
# on each call.
_SHIFT_1, _SHIFT_2, _SHIFT_3 = (np.array(bits, dtype=np.uint64) for bits in (30, 27, 31))
_FACTOR_1, _FACTOR_2 = (np.array(c, dtype=np.uint64) for c in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB))

_ONE = np.array(1, dtype=np.uint64)
_TOP_BIT = np.array(63, dtype=np.uint64)
_LOAD_BITS = 20
_MOST_LOAD = (1 << _LOAD_BITS) - 1
_LOAD_SHIFT = np.array(64 - _LOAD_BITS, dtype=np.uint64)
_WEIGHT_SHIFT = np.array(_LOAD_BITS, dtype=np.uint64)

_SORT_ALL = 64
"""Up to so many endpoints a full sort is quicker than selecting the best and sorting those."""

Merits = NDArray[np.uint64]
"""One number per endpoint, higher is better."""


def weights(key: int, hashes: NDArray[np.uint64]) -> Merits:
    """HRW weight of each endpoint for `key` (unsigned 64 bit): the splitmix64 finaliser of key XOR endpoint
    hash.
    """
    z = np.bitwise_xor(hashes, np.uint64(key))
    shifted = np.right_shift(z, _SHIFT_1)
    np.bitwise_xor(z, shifted, z)
    np.multiply(z, _FACTOR_1, z)
    np.right_shift(z, _SHIFT_2, shifted)
    np.bitwise_xor(z, shifted, z)
    np.multiply(z, _FACTOR_2, z)
    np.right_shift(z, _SHIFT_3, shifted)
    return np.bitwise_xor(z, shifted, z)


def prefer(merits: Merits, wanted: NDArray[np.bool_]) -> Merits:
    """The merits with every wanted endpoint before all others; the order within both stays.

    Costs the lowest bit: two merits closer than that become equal.
    """
    return (merits >> _ONE) | (wanted.astype(np.uint64) << _TOP_BIT)


def less_load_first(merits: Merits, in_flight: NDArray[np.int64]) -> Merits:
    """The merits with less busy endpoints before busier ones; equally busy ones stay in their order."""
    spare = (_MOST_LOAD - np.minimum(in_flight, _MOST_LOAD)).astype(np.uint64)
    return (spare << _LOAD_SHIFT) | (merits >> _WEIGHT_SHIFT)


def best(merits: Merits, count: int) -> list[int]:
    """Indices of the `count` highest merits (all, if there are fewer), best first, without sorting the
    rest.
    """
    n = len(merits)
    order: NDArray[np.intp]
    if n <= _SORT_ALL or n <= count:
        order = merits.argsort()[: -count - 1 : -1]
    else:
        chosen = merits.argpartition(n - count)[n - count :]
        order = chosen[merits[chosen].argsort()[::-1]]
    return cast("list[int]", order.tolist())


def lowest(values: NDArray[np.float64], count: int) -> list[int]:
    """Indices of the `count` lowest values (all, if there are fewer), lowest first, equal ones in order.

    Meant for a handful: of many values a few are found sooner by looking for the least so often.
    """
    if len(values) <= _SORT_ALL:
        return cast("list[int]", values.argsort(kind="stable")[:count].tolist())
    rest = values.copy()
    order = []
    for _ in range(min(count, len(values))):
        index = int(rest.argmin())
        rest[index] = np.inf
        order.append(index)
    return order
