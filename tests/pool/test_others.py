"""What a replica makes of the traffic that other replicas send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.pool.others import LEAST_LOAD, LEAST_SHARE, REMEMBERED_S, SHARING_FOR_S, Others


def reports(others: Others, own: float, load: float, start: float = 0.0, seconds: int = 60) -> float:
    """One endpoint reports each second; the time of the last report."""
    for second in range(seconds):
        others.reported(own, load, start + second + 1.0)
    return start + seconds


class TestTheShareThatIsKnown:
    def test_is_all_while_nothing_says_otherwise(self) -> None:
        others = Others()
        assert others.known_share(0.0) == 1.0
        assert others.known_share(1e6) == 1.0

    def test_is_all_when_engines_have_no_more_than_is_from_here(self) -> None:
        others = Others()
        now = reports(others, 10, 10)
        assert others.known_share(now) == 1.0
        # Requests that engines have begun since, or that ended since, are no others' requests.
        assert others.known_share(reports(others, 10, 7, now)) == 1.0

    def test_is_one_s_own_part_of_what_engines_report(self) -> None:
        others = Others()
        assert others.known_share(reports(others, 2, 8)) == pytest.approx(0.25)

    def test_counts_all_endpoints_together(self) -> None:
        others = Others()
        for second in range(60):
            others.reported(6, 6, float(second))
            others.reported(0, 6, float(second))
        assert others.known_share(60.0) == pytest.approx(0.5)

    def test_says_nothing_after_the_first_few_requests(self) -> None:
        others = Others()
        others.reported(1, LEAST_LOAD - 1, 1.0)
        assert others.known_share(1.0) == 1.0
        others.reported(1, LEAST_LOAD, 1.0)
        assert others.known_share(1.0) < 0.2

    def test_follows_the_traffic(self) -> None:
        others = Others()
        now = reports(others, 5, 10, seconds=600)
        assert others.known_share(now) == pytest.approx(0.5)
        now = reports(others, 5, 5, now, seconds=int(REMEMBERED_S))
        assert others.known_share(now) == pytest.approx(2 / 3, abs=0.01)
        now = reports(others, 5, 5, now, seconds=600)
        assert others.known_share(now) == pytest.approx(1.0)

    def test_is_never_nothing(self) -> None:
        others = Others()
        assert others.known_share(reports(others, 0, 1000)) == LEAST_SHARE

    def test_is_all_while_the_others_tell_what_they_send_and_falls_back_when_they_fall_silent(self) -> None:
        others = Others()
        now = reports(others, 2, 8)
        others.heard(100, now)
        assert others.known_share(now) == 1.0
        assert others.known_share(now + SHARING_FOR_S) == 1.0
        assert others.known_share(now + SHARING_FOR_S + 0.1) == pytest.approx(0.25)


class TestWhatMayHaveBeenSentSince:
    def test_is_nothing_when_alone(self) -> None:
        others = Others()
        for _ in range(100):
            others.sent(1000)
        assert others.unseen(10.0) == 0.0
        now = reports(others, 10, 10)
        assert others.unseen(now + 1.0) == 0.0

    def test_is_the_rate_that_was_heard_times_the_time_since(self) -> None:
        others = Others()
        for second in range(200):
            for part in range(4):
                others.heard(250, second + part / 4)
        # The last was heard of at 199.75.
        assert others.unseen(199.75) == 0.0
        assert others.unseen(200.75) == pytest.approx(1000, rel=0.05)
        assert others.unseen(202.75) == pytest.approx(3000, rel=0.05)

    def test_does_not_grow_for_ever_when_they_fall_silent(self) -> None:
        others = Others()
        for second in range(200):
            others.heard(1000, float(second))
        assert others.unseen(199 + SHARING_FOR_S) == pytest.approx(5000, rel=0.05)
        assert others.unseen(199 + SHARING_FOR_S + 0.1) == 0.0
        assert others.unseen(10_000.0) == 0.0

    def test_begins_anew_when_they_speak_again(self) -> None:
        others = Others()
        for second in range(200):
            others.heard(100_000, float(second))
        others.heard(10, 5000.0)
        assert others.unseen(5001.0) <= 10

    def test_a_pick_that_comes_late_is_added_and_turns_no_clock_back(self) -> None:
        others = Others()
        for second in range(100):
            others.heard(1000, float(second))
        before = others.unseen(100.0)
        others.heard(1000, 50.0)
        assert before < others.unseen(100.0) < 1.1 * before

    def test_where_they_do_not_tell_it_follows_from_what_was_sent_here_and_the_share_of_it(self) -> None:
        others = Others()
        for second in range(200):
            others.sent(1000)
            others.reported(2, 8, second + 1.0)
        # A quarter is from here, so the others send three thousand each second.
        assert others.unseen(200.0) == 0.0
        assert others.unseen(200.5) == pytest.approx(1500, rel=0.05)
        assert others.unseen(1000.0) == pytest.approx(3000 * SHARING_FOR_S, rel=0.05)

    @pytest.mark.parametrize("start", [0.0, 5e5])
    def test_the_rate_is_right_soon_whatever_the_clock_shows_at_the_start(self, start: float) -> None:
        others = Others()
        for second in range(30):
            others.sent(1000)
            others.reported(5, 10, start + second + 1.0)
        assert others.unseen(start + 31.0) == pytest.approx(1000, rel=0.1)

    def test_the_rate_is_right_again_soon_after_reports_were_missing_for_long(self) -> None:
        others = Others()
        for second in range(30):
            others.sent(1000)
            others.reported(5, 10, second + 1.0)
        for second in range(30):
            others.sent(1000)
            others.reported(5, 10, 7200.0 + second)
        assert others.unseen(7230.0) == pytest.approx(1000, rel=0.1)


heard = st.tuples(st.just("heard"), st.floats(0, 1e6), st.floats(-10, 10))
reported = st.tuples(st.just("reported"), st.floats(0, 1e4), st.floats(0, 1e4))
sent = st.tuples(st.just("sent"), st.floats(0, 1e6), st.floats(0, 0))


@given(st.lists(st.tuples(heard | reported | sent, st.floats(0, 100)), max_size=60))
def test_a_share_is_a_share_and_what_is_unseen_is_never_negative(
    history: list[tuple[tuple[str, float, float], float]],
) -> None:
    others, now = Others(), 0.0
    for (what, one, other), later in history:
        now += later
        if what == "heard":
            others.heard(one, now + other)
        elif what == "reported":
            others.reported(one, other, now)
        else:
            others.sent(one)
        assert LEAST_SHARE <= others.known_share(now) <= 1.0
        assert 0.0 <= others.unseen(now) < 1e12
