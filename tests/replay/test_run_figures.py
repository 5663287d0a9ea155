"""The figures of a run are those that one gets by hand."""

from __future__ import annotations

import numpy as np
import pytest

from extproc.replay.events import Change
from extproc.replay.figures import on_cold_engine, over_time, summary
from extproc.replay.run import Joined, Outcome

INF = float("inf")


def outcome() -> Outcome:
    """Engines 1 and 2 from the start, engine 3 from 100 s on; the last request is refused."""
    return Outcome(
        at=np.array([0.0, 10.0, 110.0, 130.0, 170.0, 200.0]),
        engine=np.array([0, 1, 2, 2, 2, -1], dtype=np.int32),
        ttft=np.array([1.0, 2.0, 3.0, 4.0, 10.0, np.nan]),
        total=np.array([5.0, 6.0, 7.0, 8.0, 30.0, np.nan]),
        cached=np.array([0, 50, 0, 40, 100, 0]),
        prompt=np.array([100, 100, 100, 100, 200, 100]),
        engines=[Joined("engine-1", 0.0, INF), Joined("engine-2", 0.0, INF), Joined("engine-3", 100.0, INF)],
        changes=[Change(100.0, add=1)],
        refused=1,
        busy_s=50.0,
    )


def test_hit_rate_and_times_are_those_of_the_requests_that_were_served() -> None:
    found = summary(outcome())
    assert (found.requests, found.refused) == (6, 1)
    assert found.hit_rate == pytest.approx(190 / 600)
    assert found.ttft_ms["mean"] == pytest.approx(4000)
    assert found.ttft_ms["p50"] == pytest.approx(3000)
    assert found.total_ms["mean"] == pytest.approx(56 / 5 * 1000)


def test_balance_is_of_the_engines_that_were_there_all_the_time() -> None:
    found = summary(outcome())
    assert found.max_over_mean == 1.0
    # Only the first minute has work of theirs: 100 and 50 tokens, so 100 / 75.
    assert found.work_max_over_mean == pytest.approx(100 / 75)
    assert found.share == {"engine-1": 0.2, "engine-2": 0.2, "engine-3": 0.6}


def test_engines_are_busy_in_a_share_of_the_time_until_the_last_answer() -> None:
    # The last answer ends at 200 s: two engines for 200 s and one for 100 s.
    assert summary(outcome()).busy == pytest.approx(50 / 500)


def test_an_engine_is_cold_for_a_minute() -> None:
    assert on_cold_engine(outcome()).tolist() == [False, False, True, True, False, False]
    found = summary(outcome())
    assert found.cold == 2
    assert found.cold_hit_rate == pytest.approx(40 / 200)


def test_shares_over_time_are_those_of_each_window() -> None:
    found = over_time(outcome(), windows=4)
    assert found.at.tolist() == [25.0, 75.0, 125.0, 175.0]
    assert found.hit_rate.tolist() == pytest.approx([0.25, np.nan, 0.2, 0.5], nan_ok=True)
    assert found.on_joiners.tolist() == pytest.approx([0.0, np.nan, 1.0, 1.0], nan_ok=True)


def test_a_run_in_which_nothing_was_served_has_figures_too() -> None:
    nothing = outcome()
    nothing.engine[:] = -1
    nothing.refused = 6
    found = summary(nothing)
    assert (found.hit_rate, found.ttft_ms, found.busy, found.cold) == (0.0, {}, 0.0, 0)
