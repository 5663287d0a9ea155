"""When each engine is read, and when people are told that its metrics are known or not."""

from __future__ import annotations

import random
from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.pool.scraping.cadence import ANSWERS, FAILURES, JITTER, LONGEST_BACK_OFF, Cadence

A, B = "10.0.0.1:80", "10.0.0.2:80"
NAMES = [f"10.0.{i // 250}.{i % 250}:80" for i in range(500)]


def cadence(*addresses: str, interval: float = 1.0, idle: float = 5.0) -> Cadence:
    made = Cadence(interval, idle, random.Random(1))
    made.set_addresses(addresses, 0.0)
    return made


def next_read(of: Cadence) -> tuple[float, str]:
    """The time at which one endpoint is due, and which; it is being read then."""
    at = of.next_due
    (address,) = of.take_due(at, 1)
    return at, address


class TestTheInterval:
    def test_a_new_endpoint_is_read_within_an_interval(self) -> None:
        assert 0.0 <= cadence(A).next_due <= 1.0

    def test_an_engine_with_requests_is_read_each_interval_and_an_idle_one_each_idle_interval(self) -> None:
        one = cadence(A)
        next_read(one)
        one.answered(A, busy=True, now=10.0)
        assert 11.0 - JITTER <= one.next_due <= 11.0
        next_read(one)
        one.answered(A, busy=False, now=20.0)
        assert 21.0 <= one.next_due <= 25.0
        next_read(one)
        one.answered(A, busy=False, now=30.0)
        assert 35.0 - 5 * JITTER <= one.next_due <= 35.0

    def test_an_idle_engine_that_is_sent_a_request_is_read_as_if_it_had_had_one(self) -> None:
        one = cadence(A, B)
        for _ in range(2):
            one.answered(next_read(one)[1], busy=False, now=10.0)
        one.has_work([A, "10.0.0.9:80"])
        assert next_read(one) == (11.0, A)
        assert one.next_due > 11.0

    def test_work_makes_no_read_later_and_none_while_one_is_under_way(self) -> None:
        one = cadence(A)
        due = one.next_due
        one.has_work([A])
        assert one.next_due <= due
        next_read(one)
        one.has_work([A])
        assert one.next_due == inf

    def test_reads_are_spread_over_the_interval_and_do_not_fall_into_step(self) -> None:
        many = cadence(*NAMES)
        for second in range(1, 40):
            taken = Counter[float]()
            while many.next_due < second:
                at, address = next_read(many)
                taken[round(at, 1)] += 1
                many.answered(address, busy=True, now=at)
            assert sum(taken.values()) >= len(NAMES) * 0.9
            assert max(taken.values()) < len(NAMES) / 5

    def test_reads_of_engines_that_become_idle_together_are_spread_over_the_longer_interval(self) -> None:
        many = cadence(*NAMES)
        taken = Counter[int]()
        while many.next_due < 20.0:
            at, address = next_read(many)
            taken[int(at)] += 1
            many.answered(address, busy=False, now=at)
        assert all(taken[second] < len(NAMES) / 2 for second in range(1, 20))

    def test_two_replicas_do_not_read_at_the_same_times(self) -> None:
        draws = [random.Random(seed) for seed in (1, 2)]
        replicas = [Cadence(1.0, 5.0, draw) for draw in draws]
        for replica in replicas:
            replica.set_addresses([A], 0.0)
        assert abs(replicas[0].next_due - replicas[1].next_due) > 0.01

    def test_a_changed_interval_counts_at_once(self) -> None:
        one = cadence(A, idle=300.0)
        next_read(one)
        one.answered(A, busy=False, now=10.0)
        assert one.next_due > 200.0
        one.change(0.5, 2.0, now=11.0)
        assert 11.0 <= one.next_due <= 11.5


class TestTakingWhatIsDue:
    def test_the_earliest_come_first_and_no_more_than_asked_for(self) -> None:
        many = cadence(*NAMES)
        first = many.take_due(1.0, 8)
        assert len(first) == 8
        rest = many.take_due(1.0, 1000)
        assert sorted(first + rest) == sorted(NAMES)

    def test_an_endpoint_is_not_due_while_it_is_read(self) -> None:
        one = cadence(A)
        next_read(one)
        assert one.take_due(1e9, 10) == []
        assert one.next_due == inf

    def test_nothing_is_due_without_endpoints(self) -> None:
        assert cadence().next_due == inf


class TestAnEndpointThatFails:
    def test_it_is_read_ever_less_often_and_at_the_interval_again_once_it_answers(self) -> None:
        one = cadence(A)
        waits = []
        for _ in range(12):
            at, _ = next_read(one)
            one.failed(A, "refused", at)
            waits.append(one.next_due - at)
        assert all(wait <= 1.0 for wait in waits[:FAILURES])
        assert all(LONGEST_BACK_OFF * (1 - JITTER) <= wait <= LONGEST_BACK_OFF for wait in waits[-4:])
        at, _ = next_read(one)
        one.answered(A, busy=True, now=at)
        assert one.next_due - at <= 1.0

    def test_work_does_not_shorten_its_back_off(self) -> None:
        one = cadence(A)
        for _ in range(10):
            at, _ = next_read(one)
            one.failed(A, "refused", at)
        due = one.next_due
        one.has_work([A])
        assert one.next_due == due

    def test_a_back_off_is_never_shorter_than_the_interval(self) -> None:
        one = cadence(A, interval=60.0, idle=60.0)
        for _ in range(10):
            at, _ = next_read(one)
            one.failed(A, "refused", at)
            assert one.next_due - at >= 60.0 * (1 - JITTER)


class TestWhatPeopleAreTold:
    def test_one_failure_more_than_a_few_makes_an_endpoint_unknown_once(self) -> None:
        one = cadence(A)
        one.answered(A, busy=True, now=0.0)
        assert [one.failed(A, "timeout", float(i)) for i in range(6)] == [False] * (FAILURES - 1) + [
            True,
            False,
            False,
            False,
        ]
        assert one.known(A) is False

    def test_failures_that_an_answer_interrupts_are_not_told(self) -> None:
        one = cadence(A)
        for i in range(20):
            assert not one.failed(A, "timeout", float(i))
            assert not one.answered(A, busy=True, now=float(i))
        assert one.known(A) is True

    def test_an_endpoint_is_known_again_after_several_answers_in_a_row(self) -> None:
        one = cadence(A)
        for i in range(FAILURES):
            one.failed(A, "timeout", float(i))
        assert not one.answered(A, busy=False, now=10.0)
        assert one.next_due <= 11.0  # not idle: it is to be confirmed
        one.failed(A, "timeout", 11.0)
        told = [one.answered(A, busy=False, now=12.0 + i) for i in range(4)]
        assert told == [False] * (ANSWERS - 1) + [True, False, False]
        assert one.known(A) is True

    def test_the_first_answer_of_an_endpoint_is_no_news(self) -> None:
        one = cadence(A)
        assert one.known(A) is None
        assert not one.answered(A, busy=False, now=0.0)
        assert one.known(A) is True

    def test_another_reason_is_told_once_it_has_lasted(self) -> None:
        one = cadence(A)
        told = [
            one.failed(A, reason, 0.0) for reason in ["refused"] * 4 + ["401"] * 4 + ["refused", "401"] * 3
        ]
        assert [i for i, said in enumerate(told) if said] == [FAILURES - 1, 4 + FAILURES - 1]


class TestEndpointsThatComeAndGo:
    def test_one_that_left_is_forgotten_and_begins_anew_when_it_returns(self) -> None:
        one = cadence(A, B)
        for _ in range(FAILURES):
            one.failed(A, "refused", 0.0)
        one.set_addresses([B], 1.0)
        assert one.known(A) is None
        assert not one.failed(A, "refused", 1.0)
        assert not one.answered(A, busy=True, now=1.0)
        one.set_addresses([A, B], 2.0)
        assert one.known(A) is None
        assert sorted(one.take_due(3.0, 10)) == [A, B]

    def test_those_that_stay_keep_their_time(self) -> None:
        one = cadence(A)
        due = one.next_due
        one.set_addresses([A], 0.5)
        assert one.next_due == due


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["take", "answer", "fail", "work", "set", "change", "again"]),
        st.sampled_from(NAMES[:4]),
        st.floats(0.0, 10.0),
    ),
    max_size=60,
)


@given(STEPS)
@pytest.mark.parametrize("seed", [1])
def test_every_endpoint_is_due_within_the_longest_interval_or_is_being_read(
    seed: int, steps: list[tuple[str, str, float]]
) -> None:
    of = Cadence(1.0, 5.0, random.Random(seed))
    members: set[str] = set()
    reading: set[str] = set()
    now = 0.0
    for what, address, wait in steps:
        now += wait
        if what == "take":
            taken = of.take_due(now, 2)
            assert set(taken) <= members - reading
            reading |= set(taken)
        elif what == "set":
            members ^= {address}
            reading &= members
            of.set_addresses(sorted(members), now)
        elif what == "work":
            of.has_work([address])
        elif what == "change":
            of.change(1.0, 5.0, now)
        elif address in reading:
            reading.discard(address)
            if what == "answer":
                of.answered(address, wait > 5.0, now)
            elif what == "fail":
                of.failed(address, "refused", now)
            else:
                of.again(address, now)
    waiting = members - reading
    assert set(of.take_due(now + max(5.0, LONGEST_BACK_OFF), 100)) == waiting
