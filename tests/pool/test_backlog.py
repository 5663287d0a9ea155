"""How many tokens wait on each endpoint: predicted from what was sent, put right by ends and reports."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from extproc.pool.backlog import (
    FORGET_AFTER_S,
    MOST_WORKS,
    REQUEST_TOKENS,
    TYPICAL_OVER,
    UNKNOWN_SPEED,
    Backlogs,
    Work,
)
from extproc.pool.reports import EngineReport

A, B, C = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"
SECOND = UNKNOWN_SPEED
"""Tokens that an engine computes in a second as long as it has not said otherwise."""


def of(*addresses: str) -> Backlogs:
    backlogs = Backlogs()
    backlogs.set_addresses(addresses)
    return backlogs


def send(backlogs: Backlogs, address: str, seconds: float, at: float) -> Work:
    """A prompt that takes so many seconds, with all that a request costs."""
    return backlogs.add(address, seconds * SECOND - REQUEST_TOKENS, at)


def seconds(backlogs: Backlogs, now: float) -> list[float]:
    """What waits on each endpoint, in seconds."""
    return [round(float(tokens) / SECOND, 6) for tokens in backlogs.tokens(now)]


def waiting(requests: int) -> EngineReport:
    return EngineReport(running=5, waiting=requests)


class TestThePrediction:
    def test_nothing_waits_at_first(self) -> None:
        assert of(A, B).tokens(5.0).tolist() == [0.0, 0.0]

    def test_a_prompt_waits_until_it_is_computed(self) -> None:
        backlogs = of(A, B)
        send(backlogs, B, 2.0, 10.0)
        assert [seconds(backlogs, now)[1] for now in (10.0, 10.5, 11.9, 12.0, 99.0)] == [2, 1.5, 0.1, 0, 0]
        assert seconds(backlogs, 10.0)[0] == 0

    def test_prompts_are_computed_one_after_the_other(self) -> None:
        backlogs = of(A)
        send(backlogs, A, 2.0, 10.0)
        send(backlogs, A, 3.0, 11.0)
        assert seconds(backlogs, 11.0) == [4.0]
        send(backlogs, A, 1.0, 20.0)
        assert seconds(backlogs, 20.0) == [1.0]

    def test_a_request_costs_something_though_all_of_its_prompt_is_cached(self) -> None:
        backlogs = of(A)
        backlogs.add(A, 0.0, 1.0)
        assert backlogs.tokens(1.0).tolist() == pytest.approx([REQUEST_TOKENS])

    def test_an_endpoint_that_is_not_in_the_pool_has_none(self) -> None:
        backlogs = of(A)
        work = send(backlogs, B, 2.0, 1.0)
        backlogs.ended(work, 2.0)
        backlogs.dropped(work, 2.0)
        backlogs.reported(B, waiting(3), 2.0)
        assert seconds(backlogs, 2.0) == [0.0]

    def test_what_a_request_typically_costs_is_a_running_mean(self) -> None:
        backlogs = of(A)
        assert backlogs.typical == REQUEST_TOKENS
        for tokens in (1000, 2000, 3000):
            backlogs.add(A, tokens, 1.0)
        assert backlogs.typical == pytest.approx(2000 + REQUEST_TOKENS)
        for _ in range(10 * TYPICAL_OVER):
            backlogs.add(A, 500, 1.0)
        assert backlogs.typical == pytest.approx(500 + REQUEST_TOKENS, rel=0.001)


class TestAResponseHasEnded:
    def test_its_prompt_and_all_before_it_are_computed(self) -> None:
        backlogs = of(A)
        send(backlogs, A, 5.0, 10.0)
        second = send(backlogs, A, 5.0, 10.0)
        send(backlogs, A, 2.0, 10.0)
        send(backlogs, A, 1.0, 10.0)
        backlogs.ended(second, 11.0)
        assert seconds(backlogs, 11.0) == [3.0]

    def test_it_never_makes_more_wait_than_was_predicted(self) -> None:
        backlogs = of(A)
        first = send(backlogs, A, 1.0, 10.0)
        send(backlogs, A, 1.0, 10.0)
        # Both are computed by the prediction; that the second is not known for sure changes nothing.
        backlogs.ended(first, 20.0)
        assert seconds(backlogs, 20.0) == [0.0]

    def test_what_ends_out_of_turn_ends_once(self) -> None:
        backlogs = of(A)
        first, second, third = (send(backlogs, A, 1.0, 10.0) for _ in range(3))
        backlogs.ended(second, 10.0)
        backlogs.ended(first, 10.0)
        backlogs.ended(second, 10.0)
        assert seconds(backlogs, 10.0) == [1.0]
        backlogs.ended(third, 10.0)
        assert seconds(backlogs, 10.0) == [0.0]

    def test_it_says_nothing_of_other_endpoints(self) -> None:
        backlogs = of(A, B)
        work = send(backlogs, A, 1.0, 10.0)
        send(backlogs, B, 2.0, 10.0)
        backlogs.ended(work, 10.0)
        assert seconds(backlogs, 10.0) == [0.0, 2.0]


class TestARequestThatWasGivenUp:
    def test_is_taken_off_and_those_before_it_stay(self) -> None:
        backlogs = of(A)
        send(backlogs, A, 2.0, 10.0)
        given_up = send(backlogs, A, 3.0, 10.0)
        send(backlogs, A, 1.0, 10.0)
        backlogs.dropped(given_up, 10.5)
        assert seconds(backlogs, 10.5) == [2.5]
        backlogs.dropped(given_up, 10.5)
        backlogs.ended(given_up, 10.5)
        assert seconds(backlogs, 10.5) == [2.5]

    def test_takes_off_no_more_than_waits(self) -> None:
        backlogs = of(A)
        work = send(backlogs, A, 3.0, 10.0)
        backlogs.dropped(work, 12.0)
        assert seconds(backlogs, 12.0) == [0.0]
        send(backlogs, A, 1.0, 12.0)
        assert seconds(backlogs, 12.0) == [1.0]

    def test_changes_nothing_once_it_is_known_to_be_computed(self) -> None:
        backlogs = of(A)
        first = send(backlogs, A, 1.0, 10.0)
        second = send(backlogs, A, 1.0, 10.0)
        send(backlogs, A, 1.0, 10.0)
        backlogs.ended(second, 10.0)
        backlogs.dropped(first, 10.0)
        assert seconds(backlogs, 10.0) == [1.0]


class TestAReport:
    def test_says_that_all_but_the_waiting_are_begun_and_one_of_those_may_not_be_done(self) -> None:
        backlogs = of(A)
        for length in (5.0, 4.0, 3.0, 2.0, 1.0):
            send(backlogs, A, length, 10.0)
        backlogs.reported(A, waiting(2), 10.5)
        # 2 and 1 wait, 3 may be half done.
        assert seconds(backlogs, 10.5) == [6.0]

    def test_of_no_waiting_request_leaves_the_last_prompt_at_most(self) -> None:
        backlogs = of(A)
        send(backlogs, A, 9.0, 10.0)
        send(backlogs, A, 2.0, 10.0)
        backlogs.reported(A, waiting(0), 10.5)
        assert seconds(backlogs, 10.5) == [2.0]

    def test_of_waiting_requests_puts_a_prediction_right_that_was_too_short(self) -> None:
        backlogs = of(A)
        for _ in range(4):
            send(backlogs, A, 2.0, 10.0)
        assert seconds(backlogs, 30.0) == [0.0]
        # It is slower than was thought.
        backlogs.reported(A, waiting(2), 30.0)
        assert seconds(backlogs, 30.0) == [4.0]

    def test_leaves_a_prediction_that_agrees_with_it(self) -> None:
        backlogs = of(A)
        for _ in range(4):
            send(backlogs, A, 2.0, 10.0)
        backlogs.reported(A, waiting(2), 13.0)
        assert seconds(backlogs, 13.0) == [5.0]

    def test_counts_waiting_requests_that_came_from_elsewhere_as_typical_ones(self) -> None:
        backlogs = of(A, B)
        send(backlogs, A, 2.0, 10.0)
        send(backlogs, A, 4.0, 10.0)
        backlogs.reported(B, waiting(5), 10.0)
        assert seconds(backlogs, 10.0)[1] == pytest.approx(5 * 3.0)
        backlogs.reported(A, waiting(4), 10.0)
        assert seconds(backlogs, 10.0)[0] == pytest.approx(6.0 + 2 * 3.0)

    def test_of_less_than_nothing_is_taken_as_of_nothing(self) -> None:
        backlogs = of(A)
        backlogs.reported(A, EngineReport(-1, -5), 10.0)
        assert seconds(backlogs, 10.0) == [0.0]

    def test_what_it_says_is_done_may_still_end_or_be_given_up(self) -> None:
        backlogs = of(A)
        works = [send(backlogs, A, 1.0, 10.0) for _ in range(5)]
        backlogs.reported(A, waiting(1), 10.0)
        before = seconds(backlogs, 10.0)
        backlogs.dropped(works[0], 10.0)
        backlogs.ended(works[1], 10.0)
        assert seconds(backlogs, 10.0) == before == [2.0]


class TestTheSpeed:
    def totals(
        self, prefill_s: float, computed_tokens: float, prefills: float, waiting: int = 0
    ) -> EngineReport:
        return EngineReport(
            1, waiting, computed_tokens=computed_tokens, prefills=prefills, prefill_s=prefill_s
        )

    def test_is_taken_from_the_growth_of_the_engines_totals(self) -> None:
        backlogs = of(A)
        backlogs.reported(A, self.totals(5000.0, 1e9, 1e6), 0.0)
        assert backlogs.speed == UNKNOWN_SPEED
        # A hundred requests in a hundred seconds of prefill, each of 3,744 tokens and what a request costs.
        for second in range(1, 101):
            backlogs.reported(
                A, self.totals(5000.0 + second, 1e9 + 3744 * second, 1e6 + second), float(second)
            )
        assert backlogs.speed == pytest.approx(4000, rel=0.02)
        backlogs.add(A, 8000 - REQUEST_TOKENS, 200.0)
        assert backlogs.tokens(201.0)[0] == pytest.approx(4000, rel=0.04)

    def test_is_one_of_the_pool_and_forgets_what_was_long_ago(self) -> None:
        backlogs = of(A, B)
        for address, tokens_per_s in ((A, 1000), (B, 3000)):
            backlogs.reported(address, self.totals(0.0, 0.0, 0.0), 0.0)
            backlogs.reported(address, self.totals(100.0, 100.0 * tokens_per_s, 0.0), 1.0)
        assert backlogs.speed == pytest.approx(2000, rel=0.1)
        for second in range(1, 3001):
            backlogs.reported(A, self.totals(100.0 + second, 100_000.0 + 9000.0 * second, 0.0), 1.0 + second)
        assert FORGET_AFTER_S < 3000
        assert backlogs.speed == pytest.approx(9000, rel=0.1)

    def test_is_not_changed_by_an_engine_that_began_anew_or_computed_nothing(self) -> None:
        backlogs = of(A)
        backlogs.reported(A, self.totals(100.0, 200_000.0, 500), 0.0)
        for fallen in (
            self.totals(1.0, 100.0, 1),
            self.totals(0.0, 0.0, 0),
            self.totals(0.0, 0.0, 0),
        ):
            backlogs.reported(A, fallen, 1.0)
        assert backlogs.speed == UNKNOWN_SPEED
        # From there on its totals count again.
        backlogs.reported(A, self.totals(100.0, 100 * 2000.0, 0), 2.0)
        assert backlogs.speed == pytest.approx(2000, rel=0.1)

    @pytest.mark.parametrize(
        "odd", [(200.0, 100.0, 9.0), (200.0, 900.0, 1.0), (50.0, 900.0, 9.0), (100.0, 900.0, 9.0)]
    )
    def test_is_not_taken_from_totals_of_which_one_fell(self, odd: tuple[float, float, float]) -> None:
        backlogs = of(A)
        backlogs.reported(A, self.totals(100.0, 500.0, 5.0), 0.0)
        backlogs.reported(A, self.totals(*odd), 1.0)
        assert backlogs.speed == UNKNOWN_SPEED

    def test_is_never_nothing(self) -> None:
        backlogs = of(A)
        backlogs.reported(A, self.totals(0.0, 0.0, 0.0), 0.0)
        backlogs.reported(A, self.totals(1e12, 0.0, 0.0), 1.0)
        assert backlogs.speed >= 1.0
        assert math.isfinite(backlogs.tokens(1.0)[0])


class TestPicksOfOtherReplicas:
    def test_count_like_one_s_own(self) -> None:
        backlogs = of(A)
        send(backlogs, A, 2.0, 10.0)
        send(backlogs, A, 3.0, 10.2)
        assert seconds(backlogs, 10.2) == [4.8]

    def test_that_come_late_are_entered_where_they_belong(self) -> None:
        backlogs = of(A)
        own = send(backlogs, A, 2.0, 11.0)
        later = send(backlogs, A, 1.0, 12.0)
        send(backlogs, A, 4.0, 10.0)
        assert seconds(backlogs, 12.0) == [6.0]
        # What was sent before is computed before.
        backlogs.ended(own, 13.0)
        assert seconds(backlogs, 13.0) == [1.0]
        backlogs.ended(later, 13.0)
        assert seconds(backlogs, 13.0) == [0.0]

    def test_made_before_the_last_report_are_in_that_report_already(self) -> None:
        backlogs = of(A)
        backlogs.reported(A, waiting(0), 10.0)
        send(backlogs, A, 4.0, 9.5)
        assert seconds(backlogs, 10.0) == [0.0]
        send(backlogs, A, 1.0, 10.1)
        assert seconds(backlogs, 10.1) == [1.0]

    def test_are_known_by_the_next_report(self) -> None:
        backlogs = of(A)
        backlogs.reported(A, waiting(2), 10.0)
        send(backlogs, A, 4.0, 9.5)
        send(backlogs, A, 1.0, 9.6)
        backlogs.reported(A, waiting(2), 11.0)
        assert seconds(backlogs, 11.0) == [5.0]


class TestTheList:
    def test_is_bounded_and_the_oldest_are_taken_as_computed(self) -> None:
        backlogs = of(A)
        works = [send(backlogs, A, 1.0, float(at)) for at in range(MOST_WORKS + 10)]
        assert len(backlogs._endpoints[A].works) == MOST_WORKS
        assert [work.done for work in works] == [True] * 10 + [False] * MOST_WORKS
        before = seconds(backlogs, 2000.0)
        backlogs.dropped(works[3], 2000.0)
        backlogs.ended(works[3], 2000.0)
        assert seconds(backlogs, 2000.0) == before

    def test_follows_its_endpoint_when_the_pool_changes(self) -> None:
        backlogs = of(A, B)
        send(backlogs, A, 1.0, 10.0)
        work = send(backlogs, B, 2.0, 10.0)
        backlogs.set_addresses((C, B))
        assert seconds(backlogs, 10.0) == [0.0, 2.0]
        backlogs.ended(work, 10.0)
        assert seconds(backlogs, 10.0) == [0.0, 0.0]

    def test_of_an_endpoint_that_left_is_gone_when_it_comes_back(self) -> None:
        backlogs = of(A, B)
        old = send(backlogs, A, 5.0, 10.0)
        backlogs.set_addresses((B,))
        backlogs.set_addresses((A, B))
        assert seconds(backlogs, 10.0) == [0.0, 0.0]
        send(backlogs, A, 1.0, 10.0)
        backlogs.ended(old, 10.0)
        backlogs.dropped(old, 10.0)
        assert seconds(backlogs, 10.0) == [1.0, 0.0]


ADDRESSES = (A, B, C)
address = st.sampled_from(ADDRESSES)
count = st.integers(0, 60)


class AnyHistory(RuleBasedStateMachine):
    """Prompts, ends, reports and changes of the pool in any order, late ones among them."""

    @initialize()
    def start(self) -> None:
        self.backlogs = of(*ADDRESSES)
        self.pool: tuple[str, ...] = ADDRESSES
        self.works: list[Work] = []
        self.sent: dict[str, float] = dict.fromkeys(ADDRESSES, 0.0)
        self.now = 1000.0
        self.engine = {address: [0.0, 0.0, 0.0] for address in ADDRESSES}

    @rule(seconds=st.floats(0, 20))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(address=address, tokens=st.floats(0, 1e6), late=st.sampled_from([0.0, 0.0, 0.7, 30.0]))
    def add(self, address: str, tokens: float, late: float) -> None:
        self.works.append(self.backlogs.add(address, tokens, self.now - late))

    @rule(number=count)
    def end(self, number: int) -> None:
        if number < len(self.works):
            work = self.works[number]
            before = self.backlogs.tokens(self.now)
            self.backlogs.ended(work, self.now)
            # Rounding apart: the clock's numbers are a million times those of a token.
            assert (self.backlogs.tokens(self.now) <= before + 0.01).all()

    @rule(number=count)
    def drop(self, number: int) -> None:
        if number < len(self.works):
            before = self.backlogs.tokens(self.now)
            self.backlogs.dropped(self.works[number], self.now)
            assert (self.backlogs.tokens(self.now) <= before + 0.01).all()

    @rule(
        address=address,
        waiting=st.integers(-1, 30),
        more=st.tuples(st.floats(-5, 5), st.floats(-1e4, 1e5), st.integers(-3, 20)),
    )
    def report(self, address: str, waiting: int, more: tuple[float, float, int]) -> None:
        totals = self.engine[address] = [
            max(0.0, one + other) for one, other in zip(self.engine[address], more, strict=True)
        ]
        report = EngineReport(3, waiting, prefill_s=totals[0], computed_tokens=totals[1], prefills=totals[2])
        self.backlogs.reported(address, report, self.now)
        if address in self.pool:
            known = self.backlogs._endpoints[address].works
            assert len(known) <= max(0, waiting) + 1
            strangers = max(0, max(0, waiting) - len(known)) * self.backlogs.typical
            most = sum(work.tokens for work in known) + strangers
            assert self.backlogs.tokens(self.now)[self.pool.index(address)] <= most + 1.0

    @rule(pool=st.lists(address, unique=True))
    def change_the_pool(self, pool: list[str]) -> None:
        self.pool = tuple(pool)
        self.backlogs.set_addresses(self.pool)

    @invariant()
    def what_waits_is_never_negative_and_the_list_is_in_order(self) -> None:
        tokens = self.backlogs.tokens(self.now)
        assert tokens.shape == (len(self.pool),)
        assert np.isfinite(tokens).all()
        assert (tokens >= 0.0).all()
        assert self.backlogs.speed >= 1.0
        assert self.backlogs.typical >= REQUEST_TOKENS - 1e-6
        for endpoint in self.backlogs._endpoints.values():
            times = [work.at for work in endpoint.works]
            assert times == sorted(times)
            assert not any(work.done for work in endpoint.works)

    def teardown(self) -> None:
        """When all have ended nothing waits."""
        if hasattr(self, "works"):
            for work in self.works:
                self.backlogs.ended(work, self.now)
            assert not any(endpoint.works for endpoint in self.backlogs._endpoints.values())


AnyHistory.TestCase.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
TestAnyHistory = AnyHistory.TestCase
