"""Traffic that shares how it begins, before engines that compute, cache and batch: it is spread all the same.

A rule that only follows the longest match sends all of it to one engine; a hash of the beginning does too.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from extproc.replay.arrival import Trace
from extproc.replay.policies import parse
from extproc.replay.run import Fleet, Outcome, replay
from tests.replay.traffic import ENGINE, request, trace

ENGINES = 4
TURNS = 5
SPEC = replace(ENGINE, blocks=20_000)
"""Cache of 1.3 million tokens: 50 prompts of 100 KB."""

SHARED = {"block 0": 1, "a system prompt of 5,000 tokens": 80, "a system prompt and tools of 100 KB": 400}
"""What conversations begin with, in blocks of 64 tokens: as in Mooncake's conversation trace, in tau-bench's
airline sessions, and as coding agents do."""


@cache
def conversations(shared: int, rate: float, kinds: int = 1) -> Trace:
    """A minute or more of conversations, `rate` requests per second, behind one of `kinds` prompts each."""
    draw = random.Random(3)
    arrivals, start = [], 0.0
    for number in range(1, max(60, int(60 * rate / TURNS)) + 1):
        start += draw.expovariate(rate / TURNS)
        at, kind = start, 10**8 * draw.randrange(kinds)
        chain = [*range(kind, kind + shared), *(number * 10_000 + depth for depth in range(8 * TURNS))]
        length = shared
        for _ in range(TURNS):
            length += draw.randint(2, 8)
            output = 1 + int(draw.expovariate(1 / 150))
            arrivals.append(request(at, chain[:length], output_tokens=output, session=number))
            at += 6.0 + draw.expovariate(1.0)
    return trace(arrivals)


def shares(found: Outcome) -> list[float]:
    """Part of the requests that each engine served."""
    counts = np.bincount(found.engine, minlength=ENGINES)
    return [float(share) for share in counts / counts.sum()]


def together(made: Trace, found: Outcome) -> float:
    """Part of the requests that went where their conversation began."""
    went: dict[int, list[int]] = defaultdict(list)
    for arrival, engine in zip(made.arrivals, found.engine.tolist(), strict=True):
        went[arrival.session].append(engine)
    return sum(where.count(where[0]) for where in went.values()) / len(made.arrivals)


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED.keys())
@pytest.mark.parametrize("rate", [2.0, 8.0, 16.0], ids=lambda rate: f"{rate:g} per s")
def test_all_engines_serve_it_and_each_conversation_stays_together(shared: int, rate: float) -> None:
    made = conversations(shared, rate)
    found = replay(made, Fleet(SPEC, ENGINES), parse("PREFIX_AWARE")[0].make)
    # At two per second an engine is often idle, and a conversation is a twentieth of the traffic.
    assert max(shares(found)) <= (0.5 if rate == 2.0 else 0.35)
    assert min(shares(found)) >= 0.1
    assert together(made, found) >= 0.95


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED.keys())
@pytest.mark.parametrize(
    "policy",
    [
        "PREFIX_AWARE:prefixLength=1024",
        "PREFIX_AWARE:prefixLength=65536",
        "LEAST_OUTSTANDING_REQUESTS",
        "RANDOM",
    ],
)
def test_under_no_strategy_of_ours_does_all_of_it_go_to_one_engine(policy: str, shared: int) -> None:
    made = conversations(shared, 16.0)
    found = replay(made, Fleet(SPEC, ENGINES), parse(policy)[0].make)
    assert max(shares(found)) <= 0.5


@pytest.mark.parametrize("rate", [2.0, 8.0])
def test_it_waits_no_longer_and_finds_no_less_than_when_it_goes_by_load(rate: float) -> None:
    for shared in SHARED.values():
        made = conversations(shared, rate)
        prefix, load = (
            replay(made, Fleet(SPEC, ENGINES), parse(name)[0].make)
            for name in ("PREFIX_AWARE", "LEAST_OUTSTANDING_REQUESTS")
        )
        assert prefix.ttft.mean() < 0.9 * load.ttft.mean()
        assert prefix.cached.sum() > load.cached.sum()


def test_several_long_prompts_that_do_not_all_fit_one_cache_are_kept_apart() -> None:
    """Five agents of 100 KB, each popular; an engine's cache holds three such prompts. Where all five come to
    every engine, each drives out the others, and requests wait for minutes."""
    made = conversations(400, 8.0, kinds=5)
    found = replay(made, Fleet(replace(SPEC, blocks=1600), ENGINES), parse("PREFIX_AWARE")[0].make)
    assert found.cached.sum() / found.prompt.sum() > 0.95
    assert np.quantile(found.ttft, 0.95) < 0.5
    assert max(shares(found)) <= 0.5
