"""Rendezvous hashing: even, and still when endpoints come and go."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.routing.rendezvous import best, less_load_first, lowest, prefer, weights
from tests.routing.traffic import snapshot

_MASK = 2**64 - 1


def splitmix64_next(state: int) -> int:
    """One step of Vigna's splitmix64.c in plain integers: the finaliser of state + the golden gamma."""
    z = (state + 0x9E3779B97F4A7C15) & _MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def test_the_finaliser_gives_the_published_first_numbers_of_splitmix64() -> None:
    # The sequence for seed 1234567 is the usual check of implementations (Rosetta Code, "Splitmix64").
    gamma, published = 0x9E3779B97F4A7C15, [6457827717110365317, 3203168211198807973, 9817491932198370423]
    states = np.array([(1234567 + step * gamma) & _MASK for step in (1, 2, 3)], dtype=np.uint64)
    assert weights(0, states).tolist() == published


@given(st.integers(0, _MASK), st.lists(st.integers(0, _MASK), min_size=1, max_size=20))
def test_weights_are_the_finaliser_of_key_xor_endpoint(key: int, hashes: list[int]) -> None:
    expected = [splitmix64_next(((key ^ h) - 0x9E3779B97F4A7C15) & _MASK) for h in hashes]
    assert weights(key, np.array(hashes, dtype=np.uint64)).tolist() == expected


@pytest.mark.parametrize("endpoints", [2, 4, 7, 100])
def test_keys_are_spread_evenly(endpoints: int) -> None:
    hashes = snapshot([0] * endpoints).hashes
    draw = random.Random(1)
    keys = 400 * endpoints
    first = Counter(best(weights(draw.getrandbits(64), hashes), 1)[0] for _ in range(keys))
    assert len(first) == endpoints
    # Chi-square over its mean, endpoints - 1, within five standard deviations.
    chi = sum((count - 400) ** 2 / 400 for count in first.values())
    assert chi < endpoints - 1 + 5 * (2 * (endpoints - 1)) ** 0.5


def test_sequential_keys_are_spread_as_evenly_as_random_ones() -> None:
    hashes = snapshot([0] * 8).hashes
    first = Counter(best(weights(key, hashes), 1)[0] for key in range(4000))
    assert all(400 < first[endpoint] < 600 for endpoint in range(8))


def test_second_choices_of_one_endpoint_are_spread_over_all_others() -> None:
    hashes = snapshot([0] * 5).hashes
    draw = random.Random(2)
    orders = [best(weights(draw.getrandbits(64), hashes), 2) for _ in range(5000)]
    second = Counter(order[1] for order in orders if order[0] == 0)
    assert all(0.2 < second[endpoint] / second.total() < 0.3 for endpoint in range(1, 5))


merit_lists = st.lists(st.integers(0, _MASK), min_size=1, max_size=200, unique=True)


@given(merit_lists, st.integers(1, 6))
def test_best_is_the_head_of_a_full_sort(merits: list[int], count: int) -> None:
    expected = sorted(range(len(merits)), key=lambda index: -merits[index])[:count]
    assert best(np.array(merits, dtype=np.uint64), count) == expected


@given(st.lists(st.tuples(st.integers(0, _MASK >> 1), st.booleans()), min_size=1, max_size=80))
def test_prefer_puts_the_wanted_first_and_keeps_the_order_within_both(rows: list[tuple[int, bool]]) -> None:
    merits = np.array([merit << 1 for merit, _ in rows], dtype=np.uint64)
    ranked = prefer(merits, np.array([wanted for _, wanted in rows])).tolist()
    for one, (merit, wanted) in zip(ranked, rows, strict=True):
        for other, (other_merit, other_wanted) in zip(ranked, rows, strict=True):
            assert (one < other) == ((wanted, merit) < (other_wanted, other_merit))


@given(st.lists(st.integers(0, 5_000_000), min_size=1, max_size=80))
def test_less_load_first_never_ranks_a_busier_endpoint_higher(loads: list[int]) -> None:
    merits = weights(7, np.arange(len(loads), dtype=np.uint64))
    ranked = less_load_first(merits, np.array(loads, dtype=np.int64))
    order = best(ranked, len(loads))
    capped = [min(loads[index], 2**20 - 1) for index in order]
    assert capped == sorted(capped)


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 7.0, 1e18]), min_size=1, max_size=150), st.integers(1, 6))
def test_the_lowest_are_those_of_a_sort_and_the_values_stay(values: list[float], count: int) -> None:
    array = np.array(values)
    assert lowest(array, count) == sorted(range(len(values)), key=values.__getitem__)[:count]
    assert array.tolist() == values
