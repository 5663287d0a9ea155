"""The spill rule: when a request leaves its first choice, and where it goes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.routing.rendezvous import best, weights
from extproc.routing.spill import Balance, SpillRule
from tests.routing.traffic import snapshot

THRESHOLD_ONLY = SpillRule(concurrency_threshold=16, balance=None)


def hrw_order(key: int, endpoints: int) -> list[int]:
    return best(weights(key, snapshot([0] * endpoints).hashes), endpoints)


def loads(order: list[int], *in_order: int) -> list[int]:
    """In-flight counts by endpoint, given by HRW rank."""
    counts = [0] * len(order)
    for index, count in zip(order, in_order, strict=True):
        counts[index] = count
    return counts


def choice(rule: SpillRule, key: int, in_flight: list[int], suspects: frozenset[int] = frozenset()) -> int:
    endpoints = snapshot(in_flight, suspects)
    ranking = rule.rank(weights(key, endpoints.hashes), endpoints)
    assert ranking is not None
    return ranking.order[0]


def test_the_first_choice_is_kept_below_the_threshold_and_left_at_it() -> None:
    order = hrw_order(5, 4)
    assert choice(THRESHOLD_ONLY, 5, loads(order, 15, 0, 0, 0)) == order[0]
    assert choice(THRESHOLD_ONLY, 5, loads(order, 16, 0, 0, 0)) == order[1]


def test_it_goes_to_the_next_in_hrw_order_with_room_and_not_to_the_least_busy() -> None:
    order = hrw_order(5, 4)
    assert choice(THRESHOLD_ONLY, 5, loads(order, 16, 16, 15, 0)) == order[2]


def test_when_none_has_room_it_goes_to_the_least_busy() -> None:
    order = hrw_order(5, 4)
    assert choice(THRESHOLD_ONLY, 5, loads(order, 40, 30, 20, 30)) == order[2]


def test_equally_busy_ones_without_room_are_taken_in_hrw_order() -> None:
    order = hrw_order(5, 4)
    assert choice(THRESHOLD_ONLY, 5, loads(order, 40, 30, 20, 20)) == order[2]
    assert choice(THRESHOLD_ONLY, 5, loads(order, 20, 20, 20, 20)) == order[0]


def test_with_balance_an_endpoint_has_room_up_to_the_floor_though_all_others_idle() -> None:
    order = hrw_order(5, 4)
    assert choice(SpillRule(), 5, loads(order, 7, 0, 0, 0)) == order[0]
    assert choice(SpillRule(), 5, loads(order, 8, 0, 0, 0)) == order[1]


def test_with_balance_the_bound_is_the_factor_times_the_mean_with_this_request() -> None:
    rule = SpillRule(concurrency_threshold=1024, balance=Balance(factor=1.5, floor=1))
    order = hrw_order(5, 4)
    # 1.5 * (11 + 10 + 10 + 0 + 1) / 4 = 12 > 11; one request less elsewhere makes it 11.6, still room.
    assert choice(rule, 5, loads(order, 11, 10, 10, 0)) == order[0]
    assert choice(rule, 5, loads(order, 12, 10, 9, 0)) == order[1]


def test_the_threshold_holds_however_high_the_mean() -> None:
    order = hrw_order(5, 4)
    assert choice(SpillRule(16), 5, loads(order, 16, 15, 100, 100)) == order[1]


def test_the_mean_is_taken_over_eligible_endpoints() -> None:
    order = hrw_order(5, 4)
    busy_suspect = loads(order, 9, 0, 0, 100)
    assert choice(SpillRule(), 5, busy_suspect) == order[0]
    assert choice(SpillRule(), 5, busy_suspect, frozenset({order[3]})) == order[1]


def test_a_suspect_is_never_first_and_comes_last_in_the_retry_list() -> None:
    order = hrw_order(5, 4)
    endpoints = snapshot([0] * 4, frozenset({order[0]}))
    ranking = THRESHOLD_ONLY.rank(weights(5, endpoints.hashes), endpoints)
    assert ranking is not None
    assert ranking.order == [order[1], order[2], order[3], order[0]]
    assert not ranking.spilled


def test_a_spilled_request_is_retried_where_there_is_room_before_where_there_is_none() -> None:
    order = hrw_order(5, 4)
    endpoints = snapshot(loads(order, 16, 0, 0, 16))
    ranking = THRESHOLD_ONLY.rank(weights(5, endpoints.hashes), endpoints)
    assert ranking is not None
    assert ranking.order == [order[1], order[2], order[0], order[3]]
    assert ranking.spilled
    assert ranking.home == order[0]


def test_full_endpoints_are_left_below_the_threshold_and_nobody_is_picked_when_all_are_full() -> None:
    rule = SpillRule(concurrency_threshold=16, balance=None, max_in_flight=4)
    order = hrw_order(5, 3)
    assert choice(rule, 5, loads(order, 3, 0, 0)) == order[0]
    assert choice(rule, 5, loads(order, 4, 4, 3)) == order[2]
    full = snapshot([4, 5, 4])
    assert rule.rank(weights(5, full.hashes), full) is None


def test_above_the_threshold_it_sheds_only_when_the_least_busy_is_full_too() -> None:
    rule = SpillRule(concurrency_threshold=2, balance=None, max_in_flight=4)
    order = hrw_order(5, 3)
    assert choice(rule, 5, loads(order, 4, 4, 3)) == order[2]


rules = st.builds(
    SpillRule,
    concurrency_threshold=st.integers(1, 40),
    balance=st.none() | st.builds(Balance, factor=st.floats(1.01, 3.0), floor=st.integers(1, 20)),
    max_in_flight=st.none() | st.integers(1, 60),
)


@given(rules, st.integers(0, 2**64 - 1), st.lists(st.integers(0, 70), min_size=1, max_size=90), st.data())
def test_the_rule_as_it_is_written_down(
    rule: SpillRule, key: int, in_flight: list[int], data: st.DataObject
) -> None:
    n = len(in_flight)
    suspects = data.draw(st.frozensets(st.integers(0, n - 1), max_size=n - 1))
    endpoints = snapshot(in_flight, suspects)
    order = [index for index in hrw_order(key, n) if index not in suspects]
    total = sum(in_flight[index] for index in order)
    bound = float(rule.concurrency_threshold)
    if rule.balance is not None:
        bound = min(bound, max(rule.balance.factor * ((total + 1) / len(order)), rule.balance.floor))
    full = float("inf") if rule.max_in_flight is None else rule.max_in_flight
    bound = min(bound, full)

    with_room = [index for index in order if in_flight[index] < bound]
    least = min(in_flight[index] for index in order)
    ranking = rule.rank(weights(key, endpoints.hashes), endpoints)
    if with_room:
        assert ranking is not None
        assert ranking.order[0] == with_room[0]
    elif least >= full:
        assert ranking is None
    else:
        assert ranking is not None
        assert in_flight[ranking.order[0]] == least
    if ranking is not None:
        assert ranking.home == order[0]
        assert ranking.spilled == (ranking.order[0] != order[0])
        assert len(set(ranking.order)) == len(ranking.order) == min(5, n)
        eligible_first = [index in suspects for index in ranking.order]
        assert eligible_first == sorted(eligible_first)


@pytest.mark.parametrize("rule", [SpillRule(), SpillRule(16)], ids=["default", "threshold 16"])
@pytest.mark.parametrize("endpoints", [1, 2, 4, 7, 64, 65, 300])
def test_each_request_goes_where_there_is_room_else_to_the_least_busy_whatever_came_before(
    endpoints: int, rule: SpillRule
) -> None:
    draw, now = random.Random(3), snapshot([0] * endpoints)
    counts = now.in_flight
    for _ in range(20 * endpoints):
        popular_first = int(draw.paretovariate(0.7))
        ranking = rule.rank(weights(popular_first, now.hashes), now)
        assert ranking is not None
        chosen = ranking.order[0]
        assert counts[chosen] < rule.bound(counts) or counts[chosen] == counts.min()
        counts[chosen] += 1
    assert counts.max() <= max(8, 1.25 * counts.mean()) + 1
    if rule.concurrency_threshold == 16:
        assert counts.max() - counts.min() <= 9
