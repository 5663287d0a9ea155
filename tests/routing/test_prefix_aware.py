"""PREFIX_AWARE as its users see it: where whole streams of requests go."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.pool.backlog import REQUEST_TOKENS
from extproc.pool.reports import EngineReport
from extproc.pool.snapshot import Queues, Snapshot
from extproc.prefix import BlockKeys
from extproc.routing import Strategy, build
from extproc.routing.latest import REMEMBERED_KEYS, REMEMBERED_PICKS
from extproc.routing.prefix_aware import PrefixAware
from extproc.routing.sent import POPULAR_AT_LEAST, TOKEN_BYTES
from tests.routing.traffic import Router, addresses, chat, snapshot, text

Order = Callable[[list[tuple[int, int]]], list[tuple[int, int]]]


def at_random(requests: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return random.Random(1).sample(requests, len(requests))


def in_turn(requests: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(requests, key=lambda request: request[1])


def in_a_row(requests: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(requests)


def tokens(keys: BlockKeys) -> int:
    return keys.ends[-1] // TOKEN_BYTES


def with_queues(endpoints: Snapshot, queues: Queues) -> Snapshot:
    return replace(endpoints, queues=queues)


class TestFiftyPrefixesOfTwentyRequestsOverFourEndpoints:
    def run(self, order: Order, length: int, system: str = "") -> dict[int, Counter[str]]:
        """Where the requests of each prefix went."""
        router = Router(4)
        went: dict[int, Counter[str]] = defaultdict(Counter)
        for prefix, number in order([(prefix, number) for prefix in range(50) for number in range(20)]):
            question = text(f"prefix {prefix}", length) + text(f"question {prefix} {number}", 300)
            went[prefix][router.send(chat(question, system=system))] += 1
        return went

    @pytest.mark.parametrize("order", [at_random, in_turn])
    @pytest.mark.parametrize("system", ["", text("system", 3000)], ids=["alone", "behind a system prompt"])
    @pytest.mark.parametrize("length", [400, 9000])
    def test_every_prefix_is_on_one_endpoint_from_the_first_request_on(
        self, order: Order, system: str, length: int
    ) -> None:
        went = self.run(order, length, system)
        assert {prefix: len(where) for prefix, where in went.items()} == dict.fromkeys(range(50), 1)
        used = Counter(address for where in went.values() for address in where)
        assert len(used) == 4
        # Until the system prompt is known as shared, all that begin with it are kept together.
        early = POPULAR_AT_LEAST if system else 0
        assert max(used.values()) <= early + 0.5 * (50 - early)

    @pytest.mark.parametrize("length", [400, 9000])
    def test_one_prefix_after_the_other_too_but_for_the_first_few_which_are_all_the_traffic_there_is(
        self, length: int
    ) -> None:
        went = self.run(in_a_row, length)
        assert [prefix for prefix, where in went.items() if len(where) > 1 and prefix >= 8] == []
        assert sum(where.most_common(1)[0][1] for where in went.values()) >= 970
        assert len({address for where in went.values() for address in where}) == 4

    def test_with_a_prefix_length_what_follows_it_makes_no_difference(self) -> None:
        router = Router(4, build("PREFIX_AWARE", prefix_length=1024))
        seen = defaultdict(set)
        for number in range(20):
            for prefix in range(50):
                question = text(f"prefix {prefix}", 1024) + text(f"question {prefix} {number}", 300)
                seen[prefix].add(router.send(chat(question, limit=1024)))
        assert {len(where) for where in seen.values()} == {1}


class TestConversations:
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("endpoints", [2, 4, 16])
    def test_each_stays_where_it_began_while_there_is_room(self, endpoints: int, seed: int) -> None:
        # One of a few hundred tokens may move: to compute it anew costs less than to wait.
        router, draw = Router(endpoints, concurrency=8), random.Random(seed)
        said: dict[int, list[str]] = {number: [] for number in range(100)}
        went: dict[int, set[str]] = defaultdict(set)
        for _ in range(600):
            number = draw.randrange(100)
            said[number].append(text(f"{number} asks {len(said[number])}", draw.randrange(1500, 5000)))
            went[number].add(router.send(chat(*said[number])))
            said[number].append(text(f"answer to {number} {len(said[number])}", 400))
        assert {len(where) for where in went.values()} == {1}
        share = Counter(address for where in went.values() for address in where)
        assert len(share) == endpoints
        assert max(share.values()) <= 2.5 * 100 / endpoints

    def test_requests_that_come_at_once_meet_though_none_has_been_answered(self) -> None:
        router = Router(4, concurrency=100, gap=0.0)
        document = text("document", 40_000)
        assert len({router.send(chat(document + f"question {number}")) for number in range(15)}) == 1

    def test_a_question_asked_again_comes_to_where_it_was_answered(self) -> None:
        router = Router(4)
        asked = [chat(text("document", 4000) + text(f"question {number}", 2000)) for number in range(60)]
        went = [router.send(keys) for keys in asked]
        assert len(set(went)) == 4
        # Those before it was known that all ask about one document, and who asked last, are left out.
        again = [router.send(keys) for keys in asked]
        same = sum(one == other for one, other in zip(went, again, strict=True))
        assert same >= 0.9 * len(asked)


class TestWhatItSaysOfAPick:
    def test_a_prompt_is_new_then_found_and_when_its_endpoint_is_full_spilled(self) -> None:
        router = Router(4, build("PREFIX_AWARE", concurrency_threshold=3), concurrency=100)
        keys = chat(text("prompt", 4000))
        pick = router.pick(keys)
        assert (pick.reason, pick.uncached) == ("new", tokens(keys))
        home = router.take(pick)
        pick = router.pick(keys)
        assert (pick.ranked[0], pick.reason, pick.uncached) == (home, "prefix", 0)
        for _ in range(3):
            router.pool.take(home, 0.0)
        pick = router.pick(keys)
        assert pick.ranked[0] != home
        assert (pick.reason, pick.uncached) == ("spill", tokens(keys))
        assert home in pick.ranked

    def test_what_will_have_to_be_computed_is_what_the_endpoint_was_not_sent_before(self) -> None:
        router = Router(4)
        router.send(chat(text("one", 4096)))
        keys = chat(text("one", 4096), "answer", text("two", 8192))
        pick = router.pick(keys)
        assert pick.reason == "prefix"
        assert 8192 / TOKEN_BYTES <= pick.uncached <= 8192 / TOKEN_BYTES + 10
        assert router.pick(keys).uncached == 0

    def test_what_all_have_in_common_is_nothing_found(self) -> None:
        router, system = Router(4), text("system", 2000)
        for number in range(40):
            router.send(chat(text(f"question {number}", 1000), system=system))
        assert router.pick(chat(text("another", 1000), system=system)).reason == "new"
        assert router.pick(chat(text("question 30", 1000), system=system)).reason == "prefix"

    def test_without_keys_it_goes_by_load(self) -> None:
        pick = build("PREFIX_AWARE").pick(None, snapshot([30, 10, 20]), random.Random(0))
        assert (pick.ranked[0], pick.reason, pick.uncached) == (addresses(3)[1], "load", 0)


class TestABusyEndpoint:
    def warm(self, length: int) -> tuple[Router, BlockKeys, str]:
        """A router at rest that has seen some traffic, and a prompt of so many bytes with its home."""
        router = Router(4)
        for number in range(100):
            router.send(chat(text(f"other {number}", 4000)))
        keys = chat(text("prompt", length))
        home = router.send(keys)
        router.finish_all()
        router.now += 60.0
        return router, keys, home

    def test_is_left_when_waiting_there_costs_more_than_computing_anew(self) -> None:
        router, keys, home = self.warm(8000)
        router.pool.take(home, router.now, 1000)
        assert router.pick(keys).ranked[0] == home
        for _ in range(50):
            router.pool.take(home, router.now, 2000)
        other = router.take(router.pick(keys))
        assert other != home
        # Once that is done it comes to one of the two, and to no third one.
        router.now += 60.0
        assert router.pick(keys).ranked[0] in (home, other)

    def test_a_long_prompt_waits_longer_than_a_short_one(self) -> None:
        waits = []
        for length in (1000, 10_000, 100_000):
            router, keys, home = self.warm(length)
            waiting = 0
            while router.pick(keys).ranked[0] == home:
                router.pool.take(home, router.now, 100)
                waiting += 1
                assert waiting < 10_000
            waits.append(waiting)
        assert waits == sorted(set(waits))

    def test_new_prompts_go_to_where_least_waits(self) -> None:
        router = Router(4)
        for address, waiting in zip(addresses(4), (9000, 2000, 20_000, 5000), strict=True):
            router.pool.take(address, 0.0, waiting)
        assert router.pick(chat(text("new", 4000))).ranked == tuple(addresses(4)[at] for at in (1, 3, 0, 2))

    def test_a_burst_of_one_prompt_is_spread_and_none_gets_beyond_the_threshold_before_the_others(
        self,
    ) -> None:
        router = Router(4, build("PREFIX_AWARE", concurrency_threshold=16), concurrency=1000, gap=0.0)
        keys = chat(text("popular", 4000))
        for _ in range(64):
            router.send(keys)
        assert router.loads() == [16, 16, 16, 16]

    def test_one_document_that_is_all_the_traffic_ends_up_on_every_endpoint(self) -> None:
        router = Router(4, concurrency=40, gap=0.02)
        share = Counter(
            router.send(chat(text("document", 4000) + text(f"question {number}", 300)))
            for number in range(600)
        )
        assert len(share) == 4
        assert max(share.values()) < 0.35 * share.total()


class TestTheConcurrencyThreshold:
    @given(
        st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=1, max_size=70),
        st.integers(1, 12),
        st.none() | st.integers(1, 14),
        st.lists(st.lists(st.integers(0, 2), max_size=6), min_size=1, max_size=12),
        st.integers(0, 2**32),
    )
    def test_is_never_passed_while_another_eligible_endpoint_is_below_it(
        self,
        endpoints: list[tuple[int, bool]],
        threshold: int,
        max_in_flight: int | None,
        chains: list[list[int]],
        seed: int,
    ) -> None:
        suspects = frozenset(at for at, (_, eligible) in enumerate(endpoints) if not eligible)
        now = snapshot([count for count, _ in endpoints], suspects)
        strategy = build("PREFIX_AWARE", concurrency_threshold=threshold, max_in_flight=max_in_flight)
        bound = min(threshold, max_in_flight or threshold)
        may = now.eligible & (True if max_in_flight is None else now.in_flight < max_in_flight)
        for chain in chains:
            path = [hash(tuple(chain[: end + 1])) % 2**64 for end in range(len(chain))]
            keys = BlockKeys(path, [100 * (at + 1) for at in range(len(path))])
            pick = strategy.pick(keys, now, random.Random(seed))
            if not may.any():
                assert pick.ranked == ()
                assert pick.reason == ("shed" if now.eligible.any() else "empty")
                continue
            chosen = [now.addresses.index(address) for address in pick.ranked]
            assert len(set(chosen)) == len(chosen) == min(5, len(endpoints))
            assert may[chosen[0]]
            below = may & (now.in_flight < bound)
            assert below[chosen[0]] or not below.any()
            # To be retried on: with room, without, suspects.
            tiers = [2 * bool(~now.eligible[at]) + bool(now.in_flight[at] >= bound) for at in chosen]
            assert [tier // 2 for tier in tiers] == sorted(tier // 2 for tier in tiers)
            assert [tier for tier in tiers if tier < 2] == sorted(tier for tier in tiers if tier < 2)

    @given(
        st.integers(1, 9),
        st.integers(1, 5),
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=60),
    )
    def test_holds_whatever_comes_in_whatever_order(
        self, endpoints: int, threshold: int, requests: list[tuple[int, int]]
    ) -> None:
        router = Router(endpoints, build("PREFIX_AWARE", concurrency_threshold=threshold), concurrency=10**6)
        for prefix, question in requests:
            before = router.pool.in_flight()
            chosen = router.send(chat(text(f"{prefix}", 4000), text(f"{question}", 100)))
            assert before[chosen] < threshold or min(before.values()) >= threshold

    def test_past_it_an_endpoint_that_takes_no_more_is_left_for_one_that_does(self) -> None:
        strategy = build("PREFIX_AWARE", concurrency_threshold=2, max_in_flight=4)
        keys, draw = chat(text("long", 40_000)), random.Random(0)
        home = strategy.pick(keys, snapshot([0, 0, 0]), draw).ranked[0]
        assert strategy.pick(keys, snapshot([3, 3, 3]), draw).ranked[0] == home
        full = [4 if address == home else 3 for address in addresses(3)]
        assert strategy.pick(keys, snapshot(full), draw).ranked[0] != home

    def test_counts_what_engines_report_too(self) -> None:
        router = Router(2, build("PREFIX_AWARE", concurrency_threshold=8))
        keys = chat(text("long", 100_000))
        home = router.send(keys)
        router.pool.report(home, EngineReport(8, 0), router.now)
        assert router.pick(keys).ranked[0] != home


class TestSevenEndpointsAndAThousandPrefixes:
    PREFIXES = 1000

    def place(self, router: Router, limit: int | None = None, first: int = 0) -> list[str]:
        return [
            router.send(chat(text(f"prefix {number}", 1200), limit=limit))
            for number in range(first, first + self.PREFIXES)
        ]

    @pytest.fixture(params=["auto", "fixed"])
    def strategy(self, request: pytest.FixtureRequest) -> tuple[Strategy, int | None]:
        if request.param == "auto":
            return build("PREFIX_AWARE"), None
        return build("PREFIX_AWARE", prefix_length=1024), 1024

    def test_one_that_leaves_moves_only_its_own_prefixes(self, strategy: tuple[Strategy, int | None]) -> None:
        router, limit = Router(7, strategy[0], concurrency=1), strategy[1]
        before = self.place(router, limit)
        leaving = addresses(7)[3]
        router.pool.set_endpoints(set(addresses(7)) - {leaving})
        after = self.place(router, limit)
        moved = [was for was, now in zip(before, after, strict=True) if was != now]
        assert set(moved) == {leaving}
        assert len(moved) <= 1.25 * self.PREFIXES / 7
        assert max(Counter(after).values()) < 1.25 * self.PREFIXES / 6
        assert self.place(router, limit) == after

    def test_one_that_joins_moves_little_and_gets_its_share_of_what_is_new(
        self, strategy: tuple[Strategy, int | None]
    ) -> None:
        router, limit = Router(7, strategy[0], concurrency=1), strategy[1]
        before = self.place(router, limit)
        router.pool.set_endpoints(addresses(8))
        after = self.place(router, limit)
        moved = [now for was, now in zip(before, after, strict=True) if was != now]
        assert set(moved) <= {addresses(8)[7]}
        # With a prefix length the newcomer takes over its share; else what is cached stays where it is.
        assert len(moved) <= (1.25 * self.PREFIXES / 8 if limit else 0)
        new = Counter(self.place(router, limit, first=self.PREFIXES))
        assert 0.75 < new[addresses(8)[7]] / (self.PREFIXES / 8) < 1.25

    def test_a_suspect_moves_only_its_own_prefixes_and_gets_them_back(
        self, strategy: tuple[Strategy, int | None]
    ) -> None:
        # No time passes: the suspect is out for one second.
        router, limit = Router(7, strategy[0], concurrency=1, gap=0.0), strategy[1]
        before = self.place(router, limit)
        suspect = addresses(7)[2]
        router.pool.missed(suspect, 0.0)
        after = self.place(router, limit)
        assert {was for was, now in zip(before, after, strict=True) if was != now} == {suspect}
        assert suspect not in after
        router.pool.served(suspect, 0.5)
        assert self.place(router, limit) == before


class TestWhatIsLearnt:
    def test_a_new_rule_keeps_it(self) -> None:
        router = Router(4)
        prompts = [chat(text(f"prompt {number}", 2000)) for number in range(50)]
        homes = [router.send(keys) for keys in prompts]
        router.strategy = build("PREFIX_AWARE", concurrency_threshold=32, before=router.strategy)
        picks = [router.pick(keys) for keys in prompts]
        assert [pick.ranked[0] for pick in picks] == homes
        assert {pick.reason for pick in picks} == {"prefix"}
        assert isinstance(router.strategy, PrefixAware)
        assert len(list(router.strategy.known(1000))) == 100

    def test_a_request_that_is_shed_was_sent_nowhere(self) -> None:
        router = Router(1, build("PREFIX_AWARE", max_in_flight=1), concurrency=2)
        router.send(chat("first"))
        refused = chat(text("refused", 500))
        assert router.pick(refused).reason == "shed"
        router.finish_all()
        assert router.pick(refused).reason == "new"

    def test_of_an_endpoint_that_left_and_came_back_nothing_is_taken_to_be_cached(self) -> None:
        router, keys = Router(2), chat(text("prompt", 4000))
        home = router.send(keys)
        router.pool.set_endpoints(set(addresses(2)) - {home})
        router.pick(chat("another"))
        router.pool.set_endpoints(addresses(2))
        pick = router.pick(keys)
        assert (pick.reason, pick.uncached) == ("new", tokens(keys))

    def test_a_part_of_the_pool_is_only_looked_at_and_what_the_rest_has_is_kept(self) -> None:
        router, keys = Router(4), chat(text("prompt", 4000))
        home = router.send(keys)
        others = [address for address in addresses(4) if address != home]
        pick = router.strategy.pick(keys, router.pool.snapshot(router.now, others), router.draw)
        assert set(pick.ranked) == set(others)
        assert (pick.reason, pick.uncached) == ("spill", tokens(keys))
        assert router.pick(keys).uncached == 0
        # Equally good now, and the home is the first of the two in HRW order.
        assert router.pick(keys).ranked[:2] in ((home, pick.ranked[0]), (pick.ranked[0], home))

    def test_the_last_prompts_can_be_told_the_latest_first_but_not_those_of_an_endpoint_that_left(
        self,
    ) -> None:
        router = Router(2)
        assert isinstance(router.strategy, PrefixAware)
        asked = [chat(text(f"{number}", 300)) for number in range(20)]
        sent = [(keys.keys, keys.ends, router.send(keys)) for keys in asked]
        assert list(router.strategy.known(1000)) == sent[::-1]
        assert list(router.strategy.known(3)) == sent[:-4:-1]
        router.pool.set_endpoints(addresses(1))
        router.pick(None)
        assert list(router.strategy.known(1000)) == [one for one in sent[::-1] if one[2] == addresses(1)[0]]

    def test_no_more_than_so_many_are_kept_to_be_told(self) -> None:
        router = Router(1)
        assert isinstance(router.strategy, PrefixAware)
        for number in range(REMEMBERED_PICKS + 10):
            router.pick(BlockKeys([number + 1], [64]))
        assert len(list(router.strategy.known(10**6))) == REMEMBERED_PICKS
        for number in range(200):
            path = list(range(10_000 * (number + 1), 10_000 * (number + 1) + 1024))
            router.pick(BlockKeys(path, [64 * (at + 1) for at in range(1024)]))
        told = list(router.strategy.known(10**6))
        assert told[0][0][0] == 10_000 * 200
        assert REMEMBERED_KEYS - 1024 < sum(len(keys) for keys, _, _ in told) <= REMEMBERED_KEYS


class TestOtherReplicas:
    def test_what_another_sent_is_found_where_it_was_sent(self) -> None:
        router = Router(4)
        assert isinstance(router.strategy, PrefixAware)
        prompts = [chat(text(f"prompt {number}", 4000)) for number in range(40)]
        told = [addresses(4)[number % 4] for number in range(40)]
        for keys, address in zip(prompts, told, strict=True):
            assert router.strategy.learn(keys, address) == tokens(keys)
        picks = [router.pick(keys) for keys in prompts]
        assert [pick.ranked[0] for pick in picks] == told
        assert {(pick.reason, pick.uncached) for pick in picks} == {("prefix", 0)}

    def test_it_is_told_how_much_was_left_to_compute_there(self) -> None:
        router = Router(2)
        assert isinstance(router.strategy, PrefixAware)
        first, second = addresses(2)
        begun, longer = chat(text("one", 4096)), chat(text("one", 4096), "answer", text("two", 4096))
        router.strategy.learn(begun, first)
        assert router.strategy.learn(longer, second) == tokens(longer)
        assert router.strategy.learn(longer, first) == tokens(longer) - tokens(begun)
        assert router.strategy.learn(longer, first) == 0
        assert router.strategy.learn(BlockKeys([], []), first) == 0

    def test_what_was_told_of_an_endpoint_before_any_pick_is_kept_when_the_pool_is_seen(self) -> None:
        router = Router(3)
        assert isinstance(router.strategy, PrefixAware)
        keys = chat(text("prompt", 4000))
        home = router.send(keys)
        router.pool.set_endpoints(addresses(4))
        newcomer, other = addresses(4)[3], chat(text("other", 4000))
        router.strategy.learn(other, newcomer)
        assert router.pick(other).ranked[0] == newcomer
        assert router.pick(keys).ranked[0] == home

    def test_where_they_do_not_tell_an_unknown_prompt_goes_to_where_they_would_have_sent_it(self) -> None:
        """Two replicas see uneven queues, each its own, and know of a tenth of the traffic or of all."""

        def agree(known_share: float) -> int:
            draw, same = random.Random(1), 0
            for number in range(200):
                keys = chat(text(f"prompt {number}", 8000))
                chosen = []
                for _ in range(2):
                    waiting = np.array([draw.uniform(0, 3000) for _ in range(7)])
                    queues = Queues(waiting, 2000.0, known_share)
                    pick = build("PREFIX_AWARE").pick(keys, with_queues(snapshot([9] * 7), queues), draw)
                    chosen.append(pick.ranked[0])
                same += chosen[0] == chosen[1]
            return same

        assert agree(1.0) < 100
        assert agree(0.1) == 200

    def test_replicas_that_have_not_heard_of_each_other_for_a_moment_do_not_all_choose_the_same_queue(
        self,
    ) -> None:
        now = snapshot([0] * 8)
        waiting = np.array([0.0, 100.0, 200.0, 300.0, 50_000.0, 50_000.0, 50_000.0, 50_000.0])
        replica = build("PREFIX_AWARE")
        chosen: Counter[str] = Counter()
        seen = with_queues(now, Queues(waiting, REQUEST_TOKENS, unseen=100_000.0))
        for number in range(400):
            pick = replica.pick(chat(text(f"prompt {number}", 400)), seen, random.Random(0))
            chosen[pick.ranked[0]] += 1
        assert set(chosen) == set(now.addresses[:4])
        assert min(chosen.values()) > 50
