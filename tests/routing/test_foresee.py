"""What a strategy says that it would pick is what it picks, and it is the same strategy afterwards."""

from __future__ import annotations

import random
from copy import copy
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.prefix import BlockKeys
from extproc.routing import Strategy, build
from extproc.routing.fixed_prefix import Placement
from extproc.routing.pick import Pick
from extproc.routing.prefix_aware import Weighing
from tests.routing.traffic import Router, addresses, chat, snapshot, text

LENGTH = 1024


class Kind(NamedTuple):
    name: str
    prefix_length: int | None = None

    def build(self, max_in_flight: int | None = None) -> Strategy:
        return build(
            self.name,
            prefix_length=self.prefix_length or "auto",
            concurrency_threshold=4,
            max_in_flight=max_in_flight,
        )


KINDS = [
    Kind("RANDOM"),
    Kind("LEAST_OUTSTANDING_REQUESTS"),
    Kind("PREFIX_AWARE"),
    Kind("PREFIX_AWARE", LENGTH),
]


@st.composite
def events(draw: st.DrawFn) -> list[tuple[str, int]]:
    """Requests with one of a few prompts or none, and pools of other sizes."""
    request = st.tuples(st.just("request"), st.integers(0, 7))
    members = st.tuples(st.just("endpoints"), st.integers(1, 6))
    return draw(st.lists(st.one_of(request, request, request, members), max_size=40))


def prompt(number: int, kind: Kind) -> BlockKeys | None:
    if not number:
        return None
    return chat(
        text(f"prefix {number % 3}", 3000) + text(f"question {number}", 500), limit=kind.prefix_length
    )


def run(kind: Kind, happened: list[tuple[str, int]], *, asked: bool) -> list[Pick]:
    """What is picked; `asked` before each pick what it will be, of this prompt and of others."""
    router = Router(3, kind.build(max_in_flight=6), concurrency=20)
    picks = []
    for what, number in happened:
        if what == "endpoints":
            router.pool.set_endpoints(addresses(number), router.now)
            if asked:
                router.strategy.foresee(prompt(1, kind), router.snapshot(), copy(router.draw))
            continue
        router.now += router.gap
        keys = prompt(number, kind)
        said = None
        if asked:
            router.strategy.foresee(prompt((number + 1) % 8, kind), router.snapshot(), copy(router.draw))
            only = router.pool.snapshot(router.now, router.pool.addresses[:1])
            router.strategy.foresee(keys, only, copy(router.draw))
            said = router.strategy.foresee(keys, router.snapshot(), copy(router.draw)).pick
        pick = router.pick(keys)
        assert said in (None, pick)
        if pick.ranked:
            router.take(pick)
        picks.append(pick)
    return picks


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind.name} {kind.prefix_length or ''}".strip())
class TestEveryStrategy:
    @given(events())
    def test_picks_what_it_said_and_what_it_would_have_picked_unasked(
        self, kind: Kind, happened: list[tuple[str, int]]
    ) -> None:
        assert run(kind, happened, asked=True) == run(kind, happened, asked=False)

    def test_says_that_there_is_nobody(self, kind: Kind) -> None:
        for keys in (None, prompt(1, kind)):
            foreseen = kind.build().foresee(keys, snapshot([]), random.Random(0))
            assert (foreseen.pick.reason, foreseen.pick.ranked, len(foreseen.full)) == ("empty", (), 0)

    def test_says_who_is_full_and_that_all_are(self, kind: Kind) -> None:
        foreseen = kind.build(3).foresee(prompt(1, kind), snapshot([3, 0, 4]), random.Random(0))
        assert foreseen.full.tolist() == [True, False, True]
        assert foreseen.bound == 3
        assert foreseen.pick.ranked[0] == addresses(2)[1]
        foreseen = kind.build(3).foresee(prompt(1, kind), snapshot([3, 9, 4]), random.Random(0))
        assert foreseen.full.all()
        assert foreseen.pick.reason == "shed"


def test_without_a_limit_nobody_is_full_by_load_or_chance() -> None:
    for name in ("RANDOM", "LEAST_OUTSTANDING_REQUESTS"):
        foreseen = build(name).foresee(None, snapshot([10_000, 0]), random.Random(0))
        assert (foreseen.bound, foreseen.full.tolist()) == (None, [False, False])


class TestAPrefixLength:
    def test_comes_with_the_key_and_its_whole_order(self) -> None:
        strategy, keys = build("PREFIX_AWARE", prefix_length=LENGTH), chat(text("any", 2000), limit=LENGTH)
        foreseen = strategy.foresee(keys, snapshot([0] * 9), random.Random(0))
        assert isinstance(foreseen, Placement)
        assert foreseen.key == keys.keys[-1]
        assert sorted(foreseen.order) == sorted(addresses(9))
        assert foreseen.order[:5] == foreseen.pick.ranked

    def test_has_a_smaller_bound_for_an_endpoint_that_is_eased_in(self) -> None:
        strategy, keys = build("PREFIX_AWARE", prefix_length=LENGTH), chat(text("any", 2000), limit=LENGTH)
        foreseen = strategy.foresee(keys, snapshot([2, 2, 2], ease=[0.2, 1.0, 0.5]), random.Random(0))
        assert foreseen.bound == 8
        assert foreseen.full.tolist() == [True, False, False]


class TestAnyLength:
    def test_comes_with_what_was_weighed(self) -> None:
        router, keys = Router(4), chat(text("prompt", 4000))
        home = router.send(keys)
        foreseen = router.strategy.foresee(keys, router.snapshot(), router.draw)
        assert isinstance(foreseen, Weighing)
        cached = foreseen.weighed.length - foreseen.weighed.uncached
        assert [address for address, tokens in zip(addresses(4), cached, strict=True) if tokens] == [home]
        assert foreseen.weighed.growth.argmin() == addresses(4).index(home)
