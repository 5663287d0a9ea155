"""When an agent reads every byte of a cache."""

from __future__ import annotations

from cacheprep.agent.schedule import SPREAD, due, next_deep
from cacheprep.store.layout import State
from tests.agent.found import found

WEEK = 7 * 86400.0


def test_a_cache_is_read_once_a_week_and_no_more_than_a_quarter_earlier() -> None:
    times = [due(found("a", verified_at=1000), f"node-{number}", WEEK) - 1000 for number in range(200)]
    assert all(WEEK * (1 - SPREAD) <= time <= WEEK for time in times)


def test_nodes_that_were_filled_together_do_not_read_together() -> None:
    times = sorted(due(found("a", verified_at=1000), f"node-{number}", WEEK) for number in range(200))
    within_an_hour = max(sum(start <= time < start + 3600 for time in times) for start in times)
    assert within_an_hour < 20


def test_nothing_is_read_before_its_time() -> None:
    assert next_deep([found("a", verified_at=1000)], "node", 1000 + WEEK / 2, WEEK) is None


def test_the_one_that_waited_longest_comes_first() -> None:
    old, older = found("a", verified_at=100), found("b", verified_at=50 - int(WEEK))
    assert next_deep([old, older], "node", 100 + WEEK, WEEK) == older


def test_what_is_not_ready_is_not_read() -> None:
    assert next_deep([found("a", State.UNMARKED), found("b", State.PARTIAL)], "node", 9 * WEEK, WEEK) is None


def test_nothing_is_read_while_something_is_fetched() -> None:
    ready, fetching = found("a"), found("b", State.PARTIAL, busy=True)
    assert next_deep([ready], "node", 9 * WEEK, WEEK) == ready
    assert next_deep([ready, fetching], "node", 9 * WEEK, WEEK) is None
