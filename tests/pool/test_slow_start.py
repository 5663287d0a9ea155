"""Slow start: an endpoint that joins gets its share of the requests eased in, under every strategy."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from extproc.config import parse
from extproc.metrics import Metrics
from extproc.picker import Picker
from extproc.pool.ease import Easing, SlowStart
from extproc.pool.pool import Pool
from extproc.pool.snapshot import Snapshot
from extproc.pools import Pools
from extproc.prefix import BlockKeys
from extproc.routing import Strategy, build
from tests.routing.traffic import Router, addresses, chat, snapshot, text

A, B, C, D = addresses(4)
SETTINGS = SlowStart(window=30.0, cold_window=120.0, least=0.1)


def easing(*members: str) -> Easing:
    made = Easing()
    made.use(SETTINGS)
    made.set_members(members, None, ())
    return made


def shares(easing: Easing, now: float) -> list[float] | None:
    found = easing.shares(now)
    return None if found is None else [round(float(share), 6) for share in found]


class TestTheShare:
    def test_of_those_that_have_always_been_there_is_whole(self) -> None:
        assert shares(easing(A, B), 0.0) is None

    def test_of_one_that_joins_grows_in_a_straight_line_over_the_window(self) -> None:
        made = easing(A, B)
        made.set_members((A, B, C), 100.0, ())
        assert shares(made, 100.0) == [1, 1, 0.1]
        assert shares(made, 110.0) == [1, 1, 0.4]
        assert shares(made, 115.0) == [1, 1, 0.55]
        assert shares(made, 129.9) == [1, 1, 0.997]
        assert shares(made, 130.0) is None

    def test_of_one_on_a_cold_node_grows_over_the_longer_window(self) -> None:
        made = easing(A)
        made.set_members((A, B, C), 0.0, {C})
        assert shares(made, 15.0) == [1, 0.55, 0.2125]
        assert shares(made, 60.0) == [1, 1, 0.55]
        assert shares(made, 120.0) is None

    def test_of_one_whose_node_is_prepared_meanwhile_goes_on_in_the_shorter_window(self) -> None:
        made = easing(A)
        made.set_members((A, B), 0.0, {B})
        assert shares(made, 15.0) == [1, 0.2125]
        made.set_members((A, B), 15.0, ())
        assert shares(made, 15.0) == [1, 0.55]
        assert shares(made, 30.0) is None

    def test_goes_on_when_others_come_and_go(self) -> None:
        made = easing(A)
        made.set_members((A, B), 0.0, ())
        made.set_members((C, B, A), 10.0, ())
        assert shares(made, 15.0) == [0.25, 0.55, 1]
        made.set_members((B, A), 20.0, ())
        assert shares(made, 24.0) == [0.82, 1]
        assert shares(made, 30.0) is None

    def test_begins_anew_for_one_that_left_and_comes_back(self) -> None:
        made = easing(A, B)
        made.set_members((A,), 0.0, ())
        made.set_members((A, B), 50.0, ())
        assert shares(made, 50.0) == [1, 0.1]

    def test_where_all_are_new_is_whole_for_those_that_have_been_there_longest(self) -> None:
        made = easing()
        made.set_members((A, B), 0.0, ())
        assert shares(made, 0.0) is None
        made.set_members((A, B, C), 10.0, ())
        assert shares(made, 10.0) == [1, 1, 0.25]
        made.set_members((C,), 11.0, ())
        assert shares(made, 11.0) is None

    def test_is_whole_at_once_with_a_window_of_nothing(self) -> None:
        made = easing(A)
        made.use(SlowStart(window=0.0, cold_window=0.0))
        made.set_members((A, B, C), 5.0, {C})
        assert shares(made, 5.0) is None

    def test_follows_new_settings_at_once(self) -> None:
        made = easing(A)
        made.set_members((A, B), 0.0, ())
        made.use(SlowStart(window=300.0, least=0.5))
        assert shares(made, 30.0) == [1, 0.55]
        made.use(SlowStart(window=10.0))
        assert shares(made, 30.0) is None

    @given(
        st.floats(0, 300),
        st.floats(0, 300),
        st.floats(0.01, 1),
        st.lists(
            st.tuples(st.lists(st.sampled_from(addresses(6)), unique=True), st.floats(0, 100), st.booleans()),
            max_size=10,
        ),
    )
    def test_is_above_nothing_and_at_most_whole_and_somebody_has_a_whole_one(
        self, window: float, cold_window: float, least: float, changes: list[tuple[list[str], float, bool]]
    ) -> None:
        made, now = Easing(), 0.0
        made.use(SlowStart(window, cold_window, least))
        for members, later, cold in changes:
            now += later
            made.set_members(tuple(members), now, members[:1] if cold else ())
            for moment in (now - 5.0, now, now + window / 3, now + 1000.0):
                found = made.shares(moment)
                if found is None:
                    continue
                assert found.shape == (len(members),)
                assert (found >= least * 0.999).all()
                assert (found <= 1.0).all()
                assert found.max() == 1.0
                assert found.min() < 1.0
            assert made.shares(now + 1000.0) is None


class TestThePool:
    def test_eases_in_what_joins_once_it_is_known(self) -> None:
        pool = Pool("llama")
        pool.use(SETTINGS)
        pool.set_endpoints([A, B], 100.0)
        assert pool.snapshot(100.0).ease is None
        pool.set_endpoints([A, B, C], 200.0)
        assert pool.snapshot(215.0).ease is not None
        assert pool.snapshot(230.0).ease is None

    async def test_eases_in_what_discovery_finds_later(self, tmp_path: Path) -> None:
        endpoints = tmp_path / "endpoints.yaml"
        endpoints.write_text(f"[{A}, {B}]")
        metrics, changed, now = Metrics(CollectorRegistry()), asyncio.Event(), 500.0
        picker = Picker(metrics, lambda: now, random.Random(1))
        pools = Pools(picker, metrics, changed.set, clock=lambda: now)
        text = f"pools: [{{name: llama, endpoints: {{file: {endpoints}}}, slowStart: {{window: 10s}}}}]"
        pools.apply(parse(text, "test").pools)
        try:
            (pool,) = (target.pool for target in picker._targets)
            for members in ([A, B], [A, B, C]):
                endpoints.write_text(str(members).replace("'", '"'))
                async with asyncio.timeout(10):
                    while list(pool.addresses) != members:
                        changed.clear()
                        await changed.wait()
                seen = pool.snapshot(now + 5.0)
                if C not in members:
                    assert seen.ease is None
            assert seen.ease is not None
            assert seen.ease.tolist() == pytest.approx([1, 1, 0.55])
        finally:
            await pools.stop()

    def test_does_not_ease_in_what_joins_at_no_time(self) -> None:
        pool = Pool("llama")
        pool.set_endpoints([A])
        pool.set_endpoints([A, B])
        assert pool.snapshot(0.0).ease is None

    def test_gives_the_shares_of_those_that_may_be_used_in_their_order(self) -> None:
        pool = Pool("llama")
        pool.use(SETTINGS)
        pool.set_endpoints([A, B, C])
        pool.set_endpoints([D, A, B, C], 0.0, {D: "cold"})
        seen = pool.snapshot(60.0, only={C, D})
        assert seen.addresses == (D, C)
        assert seen.ease is not None
        assert seen.ease.tolist() == pytest.approx([0.55, 1.0])


def strategies() -> dict[str, Strategy]:
    return {
        "RANDOM": build("RANDOM"),
        "LEAST_OUTSTANDING_REQUESTS": build("LEAST_OUTSTANDING_REQUESTS"),
        "PREFIX_AWARE": build("PREFIX_AWARE"),
        "fixed": build("PREFIX_AWARE", prefix_length=1024),
    }


NAMES = list(strategies())


def keys(number: int, length: int = 2000) -> BlockKeys:
    return chat(text(f"prompt {number}", length))


class TestEveryStrategy:
    def share(self, name: str, seconds: float) -> float:
        """New prompts that a newcomer gets, over the mean of the others, so many seconds after it joined four
        that have thirty requests in flight."""
        router = Router(4, strategies()[name], concurrency=30, gap=0.0)
        for number in range(100):
            router.send(keys(number, 1000))
        router.pool.use(SETTINGS)
        router.pool.set_endpoints(addresses(5), 0.0)
        router.now = seconds
        got = [router.send(keys(1000 + number, 1000)) for number in range(400)]
        return 4 * got.count(addresses(5)[4]) / (len(got) - got.count(addresses(5)[4]))

    @pytest.mark.parametrize("name", NAMES)
    def test_gives_a_newcomer_little_at_first_and_a_whole_share_after_the_window(self, name: str) -> None:
        at_once, half, whole = (self.share(name, seconds) for seconds in (0.0, 15.0, 30.0))
        assert at_once <= 0.35
        assert at_once <= half <= whole + 0.1
        assert 0.8 <= whole <= 1.25

    @pytest.mark.parametrize("name", NAMES)
    def test_picks_a_newcomer_that_is_alone(self, name: str) -> None:
        pick = strategies()[name].pick(keys(1), snapshot([0], ease=[0.1]), random.Random(0))
        assert pick.ranked == (A,)

    @pytest.mark.parametrize("name", NAMES)
    def test_picks_a_newcomer_when_the_others_are_suspect(self, name: str) -> None:
        now = snapshot([0, 0, 0], frozenset({0, 1}), ease=[1, 1, 0.1])
        for seed in range(20):
            assert strategies()[name].pick(keys(seed), now, random.Random(seed)).ranked[0] == C

    @pytest.mark.parametrize("name", NAMES)
    def test_never_refuses_while_a_newcomer_has_room_and_never_picks_a_full_one(self, name: str) -> None:
        strategy = build(
            "PREFIX_AWARE" if name == "fixed" else name,
            prefix_length=1024 if name == "fixed" else "auto",
            max_in_flight=4,
        )
        for seed in range(40):
            pick = strategy.pick(keys(seed), snapshot([4, 4, 3], ease=[1, 1, 0.05]), random.Random(seed))
            assert pick.ranked[0] == C
            pick = strategy.pick(keys(seed), snapshot([4, 3, 4], ease=[1, 1, 0.05]), random.Random(seed))
            assert pick.ranked[0] == B
            pick = strategy.pick(keys(seed), snapshot([4, 5, 4], ease=[1, 1, 0.05]), random.Random(seed))
            assert pick.reason == "shed"

    @pytest.mark.parametrize("name", NAMES)
    def test_lists_every_endpoint_to_retry_on_newcomers_too(self, name: str) -> None:
        now = snapshot([3, 0, 9, 1], ease=[1, 0.1, 1, 0.3])
        for seed in range(20):
            pick = strategies()[name].pick(keys(seed), now, random.Random(seed))
            assert set(pick.ranked) == set(addresses(4))

    @pytest.mark.parametrize("name", NAMES)
    @given(
        endpoints=st.lists(
            st.tuples(st.integers(0, 300), st.booleans(), st.floats(0.01, 1)), min_size=1, max_size=70
        ),
        seed=st.integers(0, 2**32),
        prompt=st.integers(0, 5),
    )
    def test_stays_within_the_eligible(
        self, name: str, endpoints: list[tuple[int, bool, float]], seed: int, prompt: int
    ) -> None:
        suspects = frozenset(at for at, (_, eligible, _) in enumerate(endpoints) if not eligible)
        now = snapshot([count for count, _, _ in endpoints], suspects, [share for _, _, share in endpoints])
        pick = strategies()[name].pick(keys(prompt), now, random.Random(seed))
        if len(suspects) == len(endpoints):
            assert pick.reason == "empty"
        else:
            assert now.eligible[now.addresses.index(pick.ranked[0])]
            assert len(set(pick.ranked)) == len(pick.ranked) == min(5, len(endpoints))


def eased(in_flight: list[int], ease: list[float]) -> Snapshot:
    return snapshot(in_flight, ease=ease)


class TestRandom:
    def test_a_newcomer_takes_part_with_a_probability_of_its_share(self) -> None:
        strategy, draw = build("RANDOM"), random.Random(4)
        now = eased([0, 0, 0, 0], [1, 0.25, 1, 1])
        first = Counter(strategy.pick(None, now, draw).ranked[0] for _ in range(8000))
        # In a quarter of the cases it is one of four.
        assert first[B] / 8000 == pytest.approx(1 / 16, rel=0.15)
        for address in (A, C, D):
            assert first[address] / 8000 == pytest.approx(15 / 48, rel=0.1)


class TestLeastOutstanding:
    @pytest.mark.parametrize(("in_flight", "chosen"), [([8, 0], B), ([7, 0], A), ([19, 1], B), ([17, 1], A)])
    def test_one_more_request_is_compared_over_the_share(self, in_flight: list[int], chosen: str) -> None:
        # (8 + 1) / 1 against (0 + 1) / 0.12, and (17 + 1) / 1 against (1 + 1) / 0.1.
        share = 0.12 if in_flight[1] == 0 else 0.105
        pick = build("LEAST_OUTSTANDING_REQUESTS").pick(None, eased(in_flight, [1, share]), random.Random(0))
        assert pick.ranked[0] == chosen

    def test_ties_are_still_broken_by_chance(self) -> None:
        strategy, draw = build("LEAST_OUTSTANDING_REQUESTS"), random.Random(5)
        now = eased([1, 1, 0], [1, 1, 0.5])
        first = Counter(strategy.pick(None, now, draw).ranked[0] for _ in range(3000))
        assert all(850 < first[address] < 1150 for address in (A, B, C))


class TestAPrefixLength:
    def fixed(self) -> Strategy:
        return build("PREFIX_AWARE", prefix_length=1024, concurrency_threshold=20, balance=None)

    def home(self, number: int) -> str:
        return self.fixed().pick(keys(number), snapshot([0] * 4), random.Random(0)).ranked[0]

    def test_a_newcomer_s_bound_is_its_share_of_the_others(self) -> None:
        number = next(number for number in range(100) if self.home(number) == B)
        for in_flight, stays in ((4, True), (5, False)):
            pick = self.fixed().pick(
                keys(number), eased([0, in_flight, 0, 0], [1, 0.25, 1, 1]), random.Random(0)
            )
            assert (pick.ranked[0] == B) == stays
            assert pick.reason == ("prefix" if stays else "spill")

    def test_and_is_one_at_least(self) -> None:
        number = next(number for number in range(100) if self.home(number) == B)
        for in_flight, stays in ((0, True), (1, False)):
            pick = self.fixed().pick(
                keys(number), eased([0, in_flight, 0, 0], [1, 0.01, 1, 1]), random.Random(0)
            )
            assert (pick.ranked[0] == B) == stays

    def test_when_nobody_has_room_the_least_busy_by_its_share_is_picked(self) -> None:
        pick = self.fixed().pick(keys(1), eased([30, 6, 30, 30], [1, 0.25, 1, 1]), random.Random(0))
        assert pick.ranked[0] == B
        pick = self.fixed().pick(keys(1), eased([30, 8, 30, 29], [1, 0.25, 1, 1]), random.Random(0))
        assert pick.ranked[0] == D


class TestPrefixAware:
    def test_a_prompt_that_only_the_newcomer_has_goes_to_it(self) -> None:
        router = Router(4)
        prompt = keys(1, 20_000)
        strategy = router.strategy
        strategy.pick(prompt, router.pool.snapshot(0.0, only={D}), router.draw)
        now = router.pool.snapshot(0.0)
        newcomer = Snapshot(
            now.addresses, now.hashes, now.in_flight, now.eligible, now.queues, np.array([1, 1, 1, 0.1])
        )
        assert strategy.pick(prompt, newcomer, router.draw).ranked[0] == D

    def got(self, share: float, others: int) -> set[int]:
        """Which of three hundred new prompts the newcomer gets, beside three with so much in flight."""
        now = eased([others, others, others, 0], [1, 1, 1, share])
        return {
            number
            for number in range(300)
            if build("PREFIX_AWARE").pick(keys(number), now, random.Random(0)).ranked[0] == D
        }

    def test_it_gets_no_more_new_prompts_than_its_share_of_them_however_busy_the_others_are(self) -> None:
        for share in (0.1, 0.3, 0.5):
            assert 0.6 * share < len(self.got(share, others=100)) / 300 < 1.4 * share
        assert len(self.got(1.0, others=100)) == 300

    def test_while_the_others_idle_it_gets_less_than_they_do(self) -> None:
        assert len(self.got(0.1, others=0)) < 10
        assert len(self.got(0.5, others=0)) < 0.15 * 300
        assert 0.2 < len(self.got(1.0, others=0)) / 300 < 0.3

    @pytest.mark.parametrize("others", [0, 100])
    def test_it_keeps_what_it_has_got_while_its_share_grows(self, others: int) -> None:
        a, b, c, d = (self.got(share, others) for share in (0.1, 0.4, 0.7, 1.0))
        assert a <= b <= c <= d

    def test_without_keys_growths_are_compared_over_the_share(self) -> None:
        strategy, draw = build("PREFIX_AWARE"), random.Random(0)
        first = Counter(
            strategy.pick(None, eased([0, 0, 0, 0], [1, 1, 1, 0.5]), draw).ranked[0] for _ in range(60)
        )
        assert set(first) == {A, B, C}
        busy = eased([200, 200, 200, 0], [1, 1, 1, 0.5])
        assert strategy.pick(None, busy, draw).ranked[0] == D
