"""Passive health: who is kept out, for how long, and how it comes back."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from extproc.pool.health import FIRST_BACK_OFF, LONGEST_BACK_OFF, PROBE_TIMEOUT, PassiveHealth

A, B, C = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"
SOON = 0.001


def health_of(*addresses: str) -> PassiveHealth:
    health = PassiveHealth()
    health.set_members(addresses)
    return health


def probe_and_miss(health: PassiveHealth, address: str, now: float) -> None:
    health.picked(address, now)
    health.missed(address, now + SOON, picked_at=now)


def test_an_endpoint_that_did_not_serve_is_kept_out_at_once() -> None:
    health = health_of(A, B, C)
    assert health.excluded(10.0) == frozenset()
    health.missed(A, 10.0)
    assert health.excluded(10.0) == {A}
    assert health.excluded(10.0 + FIRST_BACK_OFF - SOON) == {A}


def test_after_the_back_off_one_request_may_probe_it() -> None:
    health = health_of(A, B, C)
    health.missed(A, 10.0)
    half_open = 10.0 + FIRST_BACK_OFF
    assert health.excluded(half_open) == frozenset()
    assert not health.probing(A)
    health.picked(A, half_open)
    assert health.probing(A)
    assert health.excluded(half_open) == {A}
    assert health.suspects() == {A}


def test_a_request_that_picks_another_is_no_probe() -> None:
    health = health_of(A, B, C)
    health.missed(A, 10.0)
    health.picked(B, 12.0)
    assert health.excluded(12.0) == frozenset()


def test_a_probe_that_serves_makes_it_healthy() -> None:
    health = health_of(A, B, C)
    health.missed(A, 10.0)
    health.picked(A, 12.0)
    health.served(A, 12.5)
    assert health.excluded(12.5) == frozenset()
    assert health.suspects() == frozenset()
    health.picked(A, 13.0)
    assert health.excluded(13.0) == frozenset()


def test_serving_as_retry_makes_it_healthy_within_the_back_off() -> None:
    health = health_of(A, B, C)
    health.missed(A, 10.0)
    health.served(A, 10.1)
    assert health.excluded(10.1) == frozenset()


def test_each_missed_probe_doubles_the_back_off_up_to_the_longest() -> None:
    health = health_of(A, B, C)
    now = 10.0
    health.missed(A, now)
    expected = FIRST_BACK_OFF
    seen = []
    for _ in range(8):
        seen.append(expected)
        assert health.excluded(now + expected - SOON) == {A}
        now += expected + SOON
        assert health.excluded(now) == frozenset()
        probe_and_miss(health, A, now)
        now += SOON
        expected = min(2 * expected, LONGEST_BACK_OFF)
    assert seen == [1, 2, 4, 8, 16, 30, 30, 30]


def test_after_it_served_the_next_miss_starts_from_the_first_back_off() -> None:
    health = health_of(A, B, C)
    health.missed(A, 10.0)
    probe_and_miss(health, A, 12.0)
    health.picked(A, 20.0)
    health.served(A, 20.1)
    health.missed(A, 21.0)
    assert health.excluded(21.0 + FIRST_BACK_OFF) == frozenset()


def test_many_requests_that_fail_in_one_outage_count_as_one_miss() -> None:
    health = health_of(A, B, C)
    for number in range(50):
        health.missed(A, 10.0 + number / 100, picked_at=9.0)
    assert health.excluded(10.0 + FIRST_BACK_OFF) == frozenset()


def test_a_miss_learnt_late_says_nothing_about_an_endpoint_that_has_served_since() -> None:
    health = health_of(A, B, C)
    health.missed(A, 10.0)
    health.served(A, 12.0)
    for _ in range(2):
        health.missed(A, 13.0, picked_at=9.5)
        assert health.excluded(13.0) == frozenset()
    health.missed(A, 14.0, picked_at=13.5)
    assert health.excluded(14.0) == {A}


def test_a_miss_learnt_late_does_not_fail_a_probe() -> None:
    health = health_of(A, B, C)
    health.missed(A, 10.0)
    health.picked(A, 11.5)
    health.missed(A, 11.6, picked_at=9.9)
    assert health.probing(A)
    health.served(A, 11.7)
    assert health.suspects() == frozenset()


def test_a_probe_whose_outcome_is_never_known_gives_way_to_another() -> None:
    health = health_of(A, B, C)
    health.missed(A, 10.0)
    health.picked(A, 12.0)
    assert health.excluded(12.0 + PROBE_TIMEOUT - SOON) == {A}
    assert health.excluded(12.0 + PROBE_TIMEOUT) == frozenset()
    health.picked(A, 12.0 + PROBE_TIMEOUT)
    assert health.excluded(12.0 + PROBE_TIMEOUT) == {A}


def test_the_last_one_is_never_kept_out() -> None:
    alone = health_of(A)
    alone.missed(A, 10.0)
    assert alone.excluded(10.0) == frozenset()
    pair = health_of(A, B)
    pair.missed(A, 10.0)
    pair.missed(B, 10.0)
    assert pair.excluded(10.0) == frozenset()
    pair.picked(A, 10.1)
    assert pair.excluded(10.1) == frozenset()
    pair.served(B, 10.2)
    assert pair.excluded(10.2) == {A}


def test_an_endpoint_that_leaves_is_forgotten() -> None:
    health = health_of(A, B, C)
    health.missed(A, 10.0)
    health.set_members([B, C])
    assert health.suspects() == frozenset()
    health.missed(A, 10.1)
    health.served(A, 10.1)
    assert health.suspects() == frozenset()
    health.set_members([A, B, C])
    assert health.excluded(10.2) == frozenset()


def test_when_the_only_healthy_ones_leave_the_suspects_take_over() -> None:
    health = health_of(A, B)
    health.missed(A, 10.0)
    health.set_members([A])
    assert health.excluded(10.0) == frozenset()


def test_a_clock_set_back_does_not_prolong_an_exclusion() -> None:
    health = health_of(A, B, C)
    health.missed(A, 1_000_000.0)
    assert health.excluded(5.0) == frozenset()
    health.picked(A, 5.0)
    assert health.excluded(5.0) == {A}
    assert health.excluded(5.0 + PROBE_TIMEOUT) == frozenset()


def test_a_clock_set_forward_ends_an_exclusion() -> None:
    health = health_of(A, B, C)
    health.missed(A, 10.0)
    assert health.excluded(1e12) == frozenset()


events = st.tuples(
    st.sampled_from(["missed", "served", "picked", "leave", "join"]),
    st.sampled_from([A, B, C]),
    st.floats(-50, 200, allow_nan=False),
)


@given(st.lists(events, max_size=60))
def test_whatever_happens_some_member_is_not_kept_out_and_no_stranger_is(
    history: list[tuple[str, str, float]],
) -> None:
    members = {A, B, C}
    health = health_of(*members)
    now = 0.0
    for event, address, step in history:
        now += step
        if event == "missed":
            health.missed(address, now)
        elif event == "served":
            health.served(address, now)
            assert address not in health.excluded(now)
        elif event == "picked":
            health.picked(address, now)
        else:
            members = members - {address} if event == "leave" else members | {address}
            health.set_members(members)
        excluded = health.excluded(now)
        assert excluded <= members
        assert not members or excluded != members
        # Nobody is out for longer than the longest back-off without being tried.
        assert health.excluded(now + LONGEST_BACK_OFF) == frozenset()
