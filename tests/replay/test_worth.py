"""Is it worth it: counted from the trace, said in words."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.replay.traces import read
from extproc.replay.worth import ceiling, pooled, worth
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
    assert found.by_chance < found.pooled <= found.ceiling <= found.reusable
    assert f"{found.pooled:.1%}" in found.verdict


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


BY_HAND = trace(
    [
        request(0.0, range(1, 21)),
        request(5.0, [*range(1, 19), 31]),  # finds 1 to 18, used 5 s ago
        request(65.0, range(1, 21)),  # finds 1 to 18, used 60 s ago, and 19 and 20, used 65 s ago
        request(70.0, [50, 51, 52]),
        request(5000.0, [50, 51, 52]),  # finds all, used 4,930 s ago
    ]
)
"""Blocks of 64 tokens, and five tokens behind them in each prompt."""
TOKENS = (20 + 19 + 20 + 3 + 3) * 64 + 5 * 5


def test_the_figures_are_those_that_one_gets_by_hand() -> None:
    found = worth(BY_HAND, engines=1, blocks=20)
    assert found.requests == 5
    assert found.median_prompt_tokens == 19 * 64 + 5
    assert found.reusable == pytest.approx((18 + 20 + 3) * 64 / TOKENS)
    # 16 blocks are 1,024 tokens.
    assert found.by_depth == pytest.approx(
        {
            "up to 1024 tokens": (16 + 16 + 3) * 64 / TOKENS,
            "up to 4096 tokens": (2 + 4) * 64 / TOKENS,
            "up to 16384 tokens": 0,
            "up to 65536 tokens": 0,
            "over 65536 tokens": 0,
        }
    )
    assert found.by_age == pytest.approx(
        {
            "up to 10 s": 18 * 64 / TOKENS,
            "up to 60 s": 18 * 64 / TOKENS,
            "up to 600 s": 2 * 64 / TOKENS,
            "up to 3600 s": 0,
            "over 3600 s": 3 * 64 / TOKENS,
        }
    )
    # The prefix that ends with 20 carries 20 blocks, that with 18 carries 18, that with 52 three.
    assert (found.prefixes, found.carry_half, found.carry_most) == (3, 2, 2)
    # Block 20 is the oldest and makes room for 31, so the third request finds 19 blocks.
    assert found.pooled == found.by_chance == pytest.approx((18 + 19 + 3) * 64 / TOKENS)
    # Who knew the future would not keep 31.
    assert found.ceiling == pytest.approx(found.reusable)


@pytest.mark.parametrize(("blocks", "found"), [(20, 41), (19, 40), (10, 10 + 10 + 3), (1, 3), (0, 0)])
def test_with_less_cache_the_ceiling_falls_as_one_finds_by_hand(blocks: int, found: int) -> None:
    assert ceiling(BY_HAND, blocks) == found * BLOCK


def test_time_is_that_of_the_run() -> None:
    found = worth(BY_HAND, engines=1, blocks=20, time_scale=2.0)
    assert found.by_age["up to 60 s"] == 0
    assert found.by_age["up to 600 s"] == pytest.approx((18 + 2) * 64 / TOKENS)


@given(st.lists(st.sampled_from([(1,), (1, 2), (1, 2, 3), (4,), (4, 5)]), max_size=6), st.integers(0, 4))
def test_the_ceiling_is_what_the_best_choice_of_all_would_keep(
    chains: list[tuple[int, ...]], blocks: int
) -> None:
    made = trace([request(float(at), chain) for at, chain in enumerate(chains)])
    uses: dict[int, list[int]] = {}
    for at, chain in enumerate(chains):
        for block in chain:
            uses.setdefault(block, []).append(at)
    kept = [pair for times in uses.values() for pair in pairwise(times)]
    best = max(
        count
        for count in range(len(kept) + 1)
        if any(
            all(sum(start <= at < end for start, end in chosen) <= blocks for at in range(len(chains)))
            for chosen in combinations(kept, count)
        )
    )
    assert ceiling(made, blocks) == best * BLOCK
    assert pooled(made, blocks) <= ceiling(made, blocks)
