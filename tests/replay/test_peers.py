"""Each peer does what its description says."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from extproc.pool.reports import EngineReport
from extproc.replay.arrival import Arrival
from extproc.replay.peers.bounded_hash import BoundedHash
from extproc.replay.peers.fixed_prefix import FixedPrefix
from extproc.replay.peers.load import LeastInFlight, Random, RoundRobin
from extproc.replay.peers.match_index import MatchIndex
from extproc.replay.peers.mean_sigma import MeanSigma
from extproc.replay.peers.prefix_key import first_bytes
from extproc.replay.peers.radix_tree import RadixTree
from extproc.replay.peers.scored import Scored
from extproc.replay.peers.session_hash import SessionHash
from extproc.replay.policies import KINDS, PolicyError, parse
from extproc.replay.policy import Policy
from tests.replay.traffic import request, snapshot

IDLE = snapshot([0, 0, 0, 0])
A, B, C, D = IDLE.addresses


def picks(policy: Policy, *requests: Arrival) -> list[str]:
    draw = random.Random(1)
    return [policy.pick(one, IDLE, 0.0, draw) for one in requests]


def test_random_and_round_robin_use_every_endpoint() -> None:
    asked = [request(0, [n]) for n in range(40)]
    assert set(picks(Random(), *asked)) == set(IDLE.addresses)
    assert set(Counter(picks(RoundRobin(), *asked)).values()) == {10}


def test_least_in_flight_takes_the_least_busy() -> None:
    assert LeastInFlight().pick(request(0, [1]), snapshot([2, 1, 3]), 0.0, random.Random(1)) == B


def test_a_prefix_of_n_bytes_is_the_last_block_within_them() -> None:
    keys = request(0, [1, 2, 3]).keys
    assert first_bytes(keys, 512) == keys.keys[1]
    assert first_bytes(keys, 767) == keys.keys[1]
    assert first_bytes(keys, 10) == keys.keys[0]
    assert first_bytes(request(0, []).keys, 10) == 0


def test_a_fixed_prefix_ignores_what_follows_and_leaves_at_its_threshold() -> None:
    policy = FixedPrefix(length=512, threshold=4)
    one, two = picks(policy, request(0, [1, 2, 3]), request(0, [1, 2, 4]))
    assert one == two
    full = snapshot([4 if address == one else 1 for address in IDLE.addresses])
    assert policy.pick(request(0, [1, 2, 3]), full, 0.0, random.Random(1)) != one
    below = snapshot([3 if address == one else 0 for address in IDLE.addresses])
    assert policy.pick(request(0, [1, 2, 3]), below, 0.0, random.Random(1)) == one


def test_a_bounded_hash_leaves_above_its_multiple_of_the_mean() -> None:
    policy = BoundedHash(length=512)
    (home,) = picks(policy, request(0, [1, 2]))
    loads = [6 if address == home else 5 for address in IDLE.addresses]
    assert policy.pick(request(0, [1, 2]), snapshot(loads), 0.0, random.Random(1)) == home
    loads = [8 if address == home else 5 for address in IDLE.addresses]
    assert policy.pick(request(0, [1, 2]), snapshot(loads), 0.0, random.Random(1)) != home


def test_a_radix_tree_follows_the_longest_match_and_gives_the_unknown_to_the_smallest_tree() -> None:
    policy = RadixTree()
    first, other, again = picks(
        policy, request(0, [1, 2, 3, 4]), request(0, [5, 6, 7, 8]), request(0, [1, 2, 3, 9])
    )
    assert other != first
    assert again == first
    assert picks(policy, request(0, [1, 10, 11, 12]))[0] != first  # a quarter is below the threshold


def test_a_radix_tree_forgets_affinity_when_load_is_unbalanced() -> None:
    policy = RadixTree()
    (home,) = picks(policy, request(0, [1, 2]))
    loads = [66 if address == home else 1 for address in IDLE.addresses]
    assert policy.pick(request(0, [1, 2]), snapshot(loads), 0.0, random.Random(1)) != home


def test_scores_weigh_match_against_queue_and_cache() -> None:
    policy = Scored()
    (home,) = picks(policy, request(0, [1, 2, 3, 4]))
    assert picks(policy, request(0, [1, 2, 3, 4])) == [home]
    policy.reported(home, EngineReport(8, 9, 0.9), 1.0)
    # 3 x 1/4 of the prompt does not make up for the longest queue and a full cache.
    assert picks(policy, request(0, [1, 7, 8, 9]))[0] != home


def test_mean_sigma_follows_the_match_unless_its_endpoint_stands_out() -> None:
    policy = MeanSigma()
    (home,) = picks(policy, request(0, [1, 2]))
    usual = snapshot([5, 5, 5, 5])
    assert policy.pick(request(0, [1, 2]), usual, 0.0, random.Random(1)) == home
    busy = snapshot([9 if address == home else 5 for address in IDLE.addresses])
    assert policy.pick(request(0, [1, 2]), busy, 0.0, random.Random(1)) != home


def test_a_session_stays_and_no_session_goes_anywhere() -> None:
    asked = [request(0, [n], session=77) for n in range(20)]
    assert len(set(picks(SessionHash(), *asked))) == 1
    assert len(set(picks(SessionHash(), *(request(0, [1]) for _ in range(40))))) == 4


def test_an_index_holds_no_more_than_its_capacity() -> None:
    index = MatchIndex(capacity=3)
    index.add(A, [1, 2])
    index.add(A, [3, 4])
    assert index.size(A) == 3
    assert index.match(A, [3, 4]) == 2
    assert index.match(A, [1, 2]) == 1  # the deepest block of the oldest chain went first
    index.forget_all_but([B])
    assert index.size(A) == 0


def test_every_policy_can_be_had_by_name_and_picks_an_endpoint() -> None:
    for name in KINDS:
        (policy,) = parse(name)
        assert picks(policy.make(), request(0, [1, 2, 3]))[0] in IDLE.addresses


def test_several_values_are_a_search() -> None:
    found = parse("PREFIX_AWARE:prefixLength=1024|4096,concurrencyThreshold=8|16")
    assert [policy.label for policy in found] == [
        "PREFIX_AWARE prefixLength=1024 concurrencyThreshold=8",
        "PREFIX_AWARE prefixLength=1024 concurrencyThreshold=16",
        "PREFIX_AWARE prefixLength=4096 concurrencyThreshold=8",
        "PREFIX_AWARE prefixLength=4096 concurrencyThreshold=16",
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("PREFIX_AWAR", "did you mean PREFIX_AWARE"),
        ("PREFIX_AWARE:speed=3", "no setting 'speed'; it takes concurrencyThreshold"),
        ("PREFIX_AWARE:concurrencyThreshold=0", "a whole number from 1 to 1024"),
        ("PREFIX_AWARE:prefixLength=2.5", "a whole number from 1024 to 65536"),
        ("PREFIX_AWARE:slowStart=-1", "a number from 0 to 3600"),
        ("RANDOM:prefixLength=1024", "it takes slowStart"),
        ("scored:prefix=nan", "a number from 0 to 100"),
        ("random:x=1", "it takes none"),
    ],
)
def test_an_impossible_setting_is_refused_with_its_range(text: str, says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        parse(text)
