"""What holds for every strategy, and for RANDOM and LEAST_OUTSTANDING_REQUESTS alone."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.pool.pool import Pool
from extproc.prefix import BlockKeys
from extproc.routing import Strategy, build
from tests.routing.traffic import Router, addresses, chat, snapshot, text

NAMES = ["RANDOM", "LEAST_OUTSTANDING_REQUESTS", "PREFIX_AWARE"]
PROMPT = chat(text("question", 2000))


def each() -> dict[str, Strategy]:
    """Every strategy at its defaults, PREFIX_AWARE with and without a prefix length."""
    return {name: build(name) for name in NAMES} | {"fixed": build("PREFIX_AWARE", prefix_length=1024)}


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_has_the_name_by_which_it_was_built(name: str) -> None:
    strategy = build(name)
    assert strategy.name == name
    assert strategy.wants_keys == (name == "PREFIX_AWARE")


def test_an_unknown_strategy_is_refused_by_its_name() -> None:
    with pytest.raises(ValueError, match="ROUND_ROBIN"):
        build("ROUND_ROBIN")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("keys", [None, BlockKeys([], []), PROMPT], ids=["unknown", "no key", "known"])
class TestEveryStrategy:
    def test_of_no_endpoints_none_is_picked(self, name: str, keys: BlockKeys | None) -> None:
        pick = build(name).pick(keys, snapshot([]), random.Random(0))
        assert pick.ranked == ()
        assert pick.reason == "empty"

    def test_one_endpoint_takes_all_however_busy(self, name: str, keys: BlockKeys | None) -> None:
        for count in (0, 7, 8, 16, 10_000):
            pick = build(name).pick(keys, snapshot([count]), random.Random(0))
            assert pick.ranked == (addresses(1)[0],)

    def test_four_retries_follow_the_choice(self, name: str, keys: BlockKeys | None) -> None:
        for endpoints in (2, 4, 5, 6, 5000):
            pick = build(name).pick(keys, snapshot([0] * endpoints), random.Random(0))
            assert len(set(pick.ranked)) == len(pick.ranked) == min(5, endpoints)

    def test_a_full_pool_sheds(self, name: str, keys: BlockKeys | None) -> None:
        strategy = build(name, max_in_flight=3)
        assert strategy.pick(keys, snapshot([3, 4, 3]), random.Random(0)).reason == "shed"
        assert strategy.pick(keys, snapshot([3, 4, 3]), random.Random(0)).ranked == ()
        for seed in range(20):
            assert strategy.pick(keys, snapshot([3, 2, 3]), random.Random(seed)).ranked[0] == addresses(2)[1]

    def test_a_suspect_with_room_does_not_keep_a_full_pool_from_shedding(
        self, name: str, keys: BlockKeys | None
    ) -> None:
        strategy = build(name, max_in_flight=3)
        pick = strategy.pick(keys, snapshot([3, 0, 3], frozenset({1})), random.Random(0))
        assert pick.reason == "shed"

    def test_without_shedding_nothing_is_refused(self, name: str, keys: BlockKeys | None) -> None:
        assert len(build(name).pick(keys, snapshot([10**6] * 3), random.Random(0)).ranked) == 3


@given(
    st.sampled_from(NAMES),
    st.lists(st.tuples(st.integers(0, 40), st.booleans()), min_size=1, max_size=80),
    st.lists(st.lists(st.integers(0, 30), min_size=0, max_size=6), min_size=1, max_size=12),
    st.none() | st.integers(1, 30),
)
def test_no_pick_is_outside_the_eligible(
    name: str, endpoints: list[tuple[int, bool]], chains: list[list[int]], max_in_flight: int | None
) -> None:
    suspects = frozenset(index for index, (_, eligible) in enumerate(endpoints) if not eligible)
    now = snapshot([count for count, _ in endpoints], suspects)
    strategy = build(name, max_in_flight=max_in_flight)
    for chain in chains:
        path = [hash(tuple(chain[: end + 1])) % 2**64 for end in range(len(chain))]
        pick = strategy.pick(BlockKeys(path, list(range(len(path)))), now, random.Random(0))
        if pick.ranked:
            first = now.addresses.index(pick.ranked[0])
            assert first not in suspects
            assert max_in_flight is None or now.in_flight[first] < max_in_flight
        else:
            assert pick.reason in ("shed", "empty")


@given(
    st.sampled_from(["RANDOM", "LEAST_OUTSTANDING_REQUESTS", "PREFIX_AWARE", "fixed"]),
    st.lists(
        st.tuples(
            st.lists(st.sampled_from(addresses(9)), unique=True),
            st.none() | st.sets(st.sampled_from(addresses(9))),
            st.integers(0, 5),
            st.booleans(),
        ),
        min_size=1,
        max_size=30,
    ),
)
def test_no_pick_is_outside_the_pool_of_the_moment_or_the_part_of_it_that_may_be_used(
    name: str, steps: list[tuple[list[str], set[str] | None, int, bool]]
) -> None:
    pool, strategy, draw = Pool("llama"), each()[name], random.Random(0)
    for now, (members, only, prompt, missed) in enumerate(steps):
        pool.set_endpoints(members, float(now))
        keys = chat(text(f"prompt {prompt}", 500)) if prompt else None
        pick = strategy.pick(keys, pool.snapshot(now, only), draw)
        allowed = set(members) if only is None else only.intersection(members)
        assert set(pick.ranked) <= allowed
        assert len(pick.ranked) == min(5, len(allowed))
        assert (pick.reason == "empty") == (not allowed)
        if pick.ranked:
            taken = pool.take(pick.ranked[0], now, pick.uncached)
            if missed:
                pool.missed(pick.ranked[0], now)
                taken.release(now, computed=False)


def test_random_is_uniform_over_the_eligible() -> None:
    strategy, draw = build("RANDOM"), random.Random(4)
    now = snapshot([0, 50, 0, 3, 0], frozenset({2}))
    picks = [strategy.pick(None, now, draw) for _ in range(4000)]
    first = Counter(pick.ranked[0] for pick in picks)
    assert {pick.reason for pick in picks} == {"random"}
    assert first.keys() == set(addresses(5)) - {addresses(5)[2]}
    assert all(850 < count < 1150 for count in first.values())


def test_random_retries_in_random_order() -> None:
    strategy, draw = build("RANDOM"), random.Random(4)
    orders = {strategy.pick(None, snapshot([0] * 3), draw).ranked for _ in range(200)}
    assert len(orders) == 6


def test_least_outstanding_picks_the_fewest_in_flight_and_retries_on_the_next_fewest() -> None:
    pick = build("LEAST_OUTSTANDING_REQUESTS").pick(None, snapshot([4, 1, 3, 2]), random.Random(0))
    a, b, c, d = addresses(4)
    assert pick.ranked == (b, d, c, a)
    assert pick.reason == "load"


def test_least_outstanding_breaks_ties_by_chance() -> None:
    strategy, draw = build("LEAST_OUTSTANDING_REQUESTS"), random.Random(5)
    first = Counter(strategy.pick(None, snapshot([2, 2, 9, 2]), draw).ranked[0] for _ in range(3000))
    assert len(first) == 3
    assert all(850 < count < 1150 for count in first.values())


_ROUTE_A_DAY = """
import json, random
from extproc.pool.ease import SlowStart
from extproc.pool.reports import EngineReport
from tests.routing.test_strategies import each
from tests.routing.traffic import Router, addresses, chat, text
out = {}
for name, strategy in each().items():
    router, day = Router(7, strategy, concurrency=70, seed=9), random.Random(1)
    router.pool.use(SlowStart(window=10.0))
    out[name] = []
    for number in range(300):
        prompt, limit = text(f"p{day.randrange(40)}", 700), strategy.prefix_length
        keys = chat(prompt, system=text("shared", 500), limit=limit)
        if number % 50 == 49:
            router.pool.set_endpoints(day.sample(addresses(9), 7), router.now)
        if number % 10 == 9:
            some = day.choice(router.pool.addresses)
            router.pool.report(some, EngineReport(day.randrange(9), day.randrange(5)), router.now)
            router.pool.missed(day.choice(router.pool.addresses), router.now)
        if number % 7 == 0 and name == "PREFIX_AWARE":
            some = day.choice(router.pool.addresses)
            router.pool.heard(some, strategy.learn(keys, some), router.now)
        if number % 5 == 0:
            part = set(day.sample(router.pool.addresses, 4))
            pick = strategy.pick(keys, router.pool.snapshot(router.now, part), router.draw)
            router.take(pick)
            out[name].append(pick.ranked)
        out[name].append(router.send(keys if day.random() < 0.9 else None))
print(json.dumps(out))
"""


def test_two_processes_pick_the_same_for_the_same_requests() -> None:
    def route(hash_seed: str) -> dict[str, list[object]]:
        done = subprocess.run(
            [sys.executable, "-c", _ROUTE_A_DAY],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            cwd=Path(__file__).parents[2],
            stdout=subprocess.PIPE,
            check=True,
        )
        answer: dict[str, list[object]] = json.loads(done.stdout)
        return answer

    first = route("1")
    for picks in first.values():
        assert len({pick for pick in picks if isinstance(pick, str)}) >= 7
    assert route("2") == first


@pytest.mark.parametrize("name", ["LEAST_OUTSTANDING_REQUESTS", "PREFIX_AWARE", "fixed"])
def test_the_order_in_which_endpoints_are_given_makes_no_difference(name: str) -> None:
    one, two = Router(7, each()[name]), Router(7, each()[name])
    two.pool.set_endpoints(addresses(7)[::-1])
    for number in range(300):
        keys = chat(text(f"p{number * 7 % 40}", 700), text(f"q{number}", 300))
        assert one.send(keys) == two.send(keys)


def test_counts_return_to_zero_when_all_requests_have_ended() -> None:
    router = Router(4, concurrency=50)
    for number in range(500):
        router.send(chat(text(f"p{number % 9}", 300)))
    router.finish_all()
    assert router.loads() == [0, 0, 0, 0]
