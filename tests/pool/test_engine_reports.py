"""Load as engines report it, joined with what was sent to them since."""

from __future__ import annotations

import pytest

from extproc.pool.pool import Pool
from extproc.pool.reports import REPORT_LIFETIME, EngineReport

A, B = "10.0.0.1:80", "10.0.0.2:80"


@pytest.fixture
def pool() -> Pool:
    pool = Pool("llama")
    pool.set_endpoints([A, B])
    return pool


def load(pool: Pool, now: float) -> list[int]:
    return [int(count) for count in pool.snapshot(now).in_flight]


def test_a_busier_report_counts_and_own_picks_since_are_added(pool: Pool) -> None:
    pool.report(A, EngineReport(10, 0), 1.0)
    assert load(pool, 1.0) == [10, 0]
    pool.take(A, 1.1)
    pool.take(B, 1.1)
    assert load(pool, 1.2) == [11, 1]


def test_the_own_count_holds_when_the_report_is_lower(pool: Pool) -> None:
    for _ in range(5):
        pool.take(A, 0.0)
    pool.report(A, EngineReport(2, 0), 1.0)
    assert load(pool, 1.0) == [5, 0]
    pool.take(A, 1.1)
    assert load(pool, 1.2) == [6, 0]


def test_a_new_report_replaces_the_old_and_its_picks(pool: Pool) -> None:
    pool.report(A, EngineReport(10, 0), 1.0)
    pool.take(A, 1.1).release(1.15)
    assert load(pool, 1.2) == [11, 0]
    pool.report(A, EngineReport(3, 0), 2.0)
    assert load(pool, 2.0) == [3, 0]


def test_an_old_report_no_longer_counts(pool: Pool) -> None:
    pool.report(A, EngineReport(10, 0), 1.0)
    assert load(pool, 1.0 + REPORT_LIFETIME) == [10, 0]
    assert load(pool, 1.0 + REPORT_LIFETIME + 0.01) == [0, 0]


def test_a_report_from_the_future_of_a_clock_set_back_does_not_count(pool: Pool) -> None:
    pool.report(A, EngineReport(10, 0), 1000.0)
    assert load(pool, 1.0) == [0, 0]


def test_reports_follow_their_endpoints_when_the_pool_changes(pool: Pool) -> None:
    pool.report(A, EngineReport(10, 0), 1.0)
    pool.report(B, EngineReport(20, 0), 1.0)
    pool.set_endpoints(["10.0.0.9:80", B])
    assert load(pool, 1.0) == [0, 20]
    pool.set_endpoints([A, B])
    assert load(pool, 1.0) == [0, 20]


def test_a_stranger_s_report_and_a_negative_one_change_nothing(pool: Pool) -> None:
    pool.report("10.0.0.9:80", EngineReport(10, 0), 1.0)
    pool.report(A, EngineReport(-3, 0), 1.0)
    assert load(pool, 1.0) == [0, 0]
