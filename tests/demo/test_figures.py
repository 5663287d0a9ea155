"""From samples and pages to the figures of the report."""

from __future__ import annotations

import pytest

from extproc.demo import figures
from extproc.demo.experiment import summarise
from extproc.demo.load import Outcome


def _page(**values: float) -> figures.Page:
    """A page of an engine, or with `requests` that of a router that decided so many."""
    lines = [
        f"vllm:prefix_cache_queries_total {values.get('queried', 0)}",
        f"vllm:prefix_cache_hits_total {values.get('hit', 0)}",
        f"simulation:prefill_busy_seconds_total {values.get('busy', 0)}",
        f"simulation:clock_seconds_total {values.get('clock', 0)}",
        f'extproc_requests_total{{pool="demo",reason="prefix"}} {values.get("prefix", 0)}',
        f'extproc_requests_total{{pool="demo",reason="unpinned"}} {values.get("unpinned", 0)}',
    ]
    return figures.parse("\n".join(lines) + "\n")


def _good(due: float, engine: str, ttft: float = 0.1) -> Outcome:
    return Outcome(due, "tau-bench", due + 0.002, due + ttft, due + 1, engine, 100, 50, 10)


def test_a_total_sums_the_series_that_carry_the_labels() -> None:
    page = figures.parse('a_total{x="1",y="1"} 2\na_total{x="1",y="2"} 3\na_total{x="2",y="1"} 5\n')
    assert figures.total(page, "a_total", x="1") == 5
    assert figures.total(page, "a_total") == 10
    assert figures.total(page, "b_total") == 0


def test_percentiles_are_named_and_absent_without_samples() -> None:
    assert figures.percentiles([1, 2, 3], 50, 95) == {"p50": 2.0, "p95": pytest.approx(2.9)}
    assert figures.percentiles([], 50) == {}


def test_a_run_is_summed_up_from_growth_of_counters_and_complete_answers_only() -> None:
    outcomes = [_good(0, "engine-1"), _good(1, "engine-1"), _good(2, "engine-2"), _good(3, "engine-2", 0.3)]
    outcomes.append(Outcome(4, "mooncake", 4.0, 4.1, None, "engine-2", error="the answer was cut"))
    before = {"engine-1": _page(queried=10, hit=10), "engine-2": _page(), "router": _page(prefix=7)}
    after = {
        "engine-1": _page(queried=210, hit=110, busy=2, clock=4),
        "engine-2": _page(queried=200, busy=1, clock=4),
        "router": _page(prefix=11, unpinned=1),
    }
    summary = summarise(outcomes, before, after)
    assert summary["hit_rate"] == 0.25
    assert summary["share"] == {"engine-1": 0.5, "engine-2": 0.5}
    assert summary["share_furthest_from_even"] == 0
    assert (summary["failed"], summary["requests"]) == (1, 5)
    assert summary["errors"] == {"the answer was cut": 1}
    assert summary["requests_per_s"] == 1.0  # four answers, the last complete at 4 s
    assert summary["ttft_ms"]["p50"] == pytest.approx(100)
    assert summary["undecided"] == 1
    assert summary["picks"] == {"prefix": 4, "unpinned": 1}
    assert summary["prefill_utilisation"] == {"engine-1": 0.5, "engine-2": 0.25}
    assert summary["client_lag_ms"]["p99"] == pytest.approx(2, abs=0.1)


def test_a_run_without_an_answer_has_figures_too() -> None:
    outcomes = [Outcome(0, "mooncake", 0.0, error="ServerDisconnectedError")]
    pages = {"engine-1": _page(), "router": _page()}
    summary = summarise(outcomes, pages, pages)
    assert (summary["failed"], summary["ttft_ms"], summary["hit_rate"]) == (1, {}, 0)
