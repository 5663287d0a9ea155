"""Is it worth it: counted from the trace, said in words."""

from __future__ import annotations

import pytest

from extproc.replay.traces import read
from extproc.replay.worth import pooled, worth
from tests.replay.traffic import BLOCK, DATA, conversations, request, trace


def test_unique_prompts_gain_nothing_and_it_says_so() -> None:
    found = worth(trace([request(n, [n * 100 + d for d in range(20)]) for n in range(50)]), 4, 4000)
    assert found.reusable == 0.0
    assert found.verdict.startswith("Little: only 0.0%")


def test_what_every_engine_has_anyway_gains_nothing() -> None:
    found = worth(trace([request(n, [*range(100), 1000 + n]) for n in range(2000)]), 4, 4000)
    assert found.reusable > 0.9
    assert found.verdict.startswith("Little: engines find 98.")


def test_what_comes_too_late_gains_nothing() -> None:
    chains = [[n * 100 + d for d in range(50)] for n in range(40)]
    found = worth(trace([request(n, chain) for n, chain in enumerate(chains + chains)]), 2, 100)
    assert found.reusable == pytest.approx(0.5, abs=0.01)
    assert "so late" in found.verdict


def test_conversations_gain_what_chance_leaves() -> None:
    found = worth(conversations(100), 8, 4000)
    assert found.verdict.startswith("Yes")
    assert found.by_chance < found.best <= found.reusable
    assert f"{found.best:.1%}" in found.verdict


def test_parts_add_up_to_the_whole() -> None:
    found = worth(conversations(50), 4, 4000)
    assert sum(found.by_depth.values()) == pytest.approx(found.reusable)
    assert sum(found.by_age.values()) == pytest.approx(found.reusable)
    assert 0 < found.carry_half <= found.carry_most <= found.prefixes


def test_few_prefixes_may_carry_it() -> None:
    arrivals = [request(n, [n % 2 * 1000 + d for d in range(20)]) for n in range(100)]
    found = worth(trace(arrivals), 4, 4000)
    assert (found.prefixes, found.carry_most) == (2, 2)


def test_the_last_token_is_never_cached() -> None:
    exact = request(0.0, range(4))._replace(prompt_tokens=4 * BLOCK)
    assert pooled(trace([exact, exact]), 100) == 3 * BLOCK


def test_a_trace_without_prefixes_says_that_it_cannot_tell() -> None:
    trace_without = read(DATA / "azure.csv")
    assert worth(trace_without, 4, 4000).verdict.startswith("Unknown")
