"""PREFIX_AWARE as its users see it: where whole streams of requests go."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable

import pytest

from extproc.prefix import BlockKeys
from extproc.routing import Strategy, build
from extproc.routing.depth import HOT_PER_ENDPOINT
from extproc.routing.spill import SpillRule
from tests.routing.traffic import Router, addresses, chat, text

Order = Callable[[list[tuple[int, int]]], list[tuple[int, int]]]


def at_random(requests: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return random.Random(1).sample(requests, len(requests))


def in_turn(requests: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(requests, key=lambda request: request[1])


def in_a_row(requests: list[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(requests)


def strategies() -> dict[str, Strategy]:
    return {"auto": build("PREFIX_AWARE"), "fixed": build("PREFIX_AWARE", prefix_length=1024)}


class TestFiftyPrefixesOfTwentyRequestsOverFourEndpoints:
    @pytest.mark.parametrize("order", [at_random, in_turn, in_a_row])
    @pytest.mark.parametrize("system", ["", text("system", 3000)], ids=["alone", "behind a system prompt"])
    @pytest.mark.parametrize("length", [400, 9000])
    def test_every_prefix_is_on_one_endpoint_from_the_first_request_on(
        self, order: Order, system: str, length: int
    ) -> None:
        router = Router(4)
        seen = defaultdict(set)
        for prefix, number in order([(prefix, number) for prefix in range(50) for number in range(20)]):
            question = text(f"prefix {prefix}", length) + text(f"question {prefix} {number}", 300)
            seen[prefix].add(router.send(chat(question, system=system)))
        assert {prefix: len(where) for prefix, where in seen.items()} == dict.fromkeys(range(50), 1)
        used = Counter(where for each in seen.values() for where in each)
        assert len(used) == 4
        # Until the system prompt is known as shared, all that begin with it are kept together.
        early = HOT_PER_ENDPOINT * 4 if system else 0
        assert max(used.values()) <= early + 0.5 * (50 - early)

    def test_with_a_prefix_length_what_follows_it_makes_no_difference(self) -> None:
        router = Router(4, build("PREFIX_AWARE", prefix_length=1024))
        seen = defaultdict(set)
        for number in range(20):
            for prefix in range(50):
                question = text(f"prefix {prefix}", 1024) + text(f"question {prefix} {number}", 300)
                seen[prefix].add(router.send(chat(question, limit=1024)))
        assert {len(where) for where in seen.values()} == {1}


class TestAgentsThatShareAHundredKilobytes:
    @pytest.mark.parametrize("seed", range(2))
    def test_they_are_spread_and_each_conversation_stays_together(self, seed: int) -> None:
        router = Router(4, seed=seed)
        prompt = text("agent", 100_000)
        draw = random.Random(seed)
        waiting = list(range(334))
        turns: dict[int, list[str]] = {}
        open_conversations: list[int] = []
        went: dict[int, list[str]] = defaultdict(list)
        while waiting or open_conversations:
            if waiting and (len(open_conversations) < 20 or draw.random() < 0.3):
                conversation = waiting.pop()
                turns[conversation] = []
                open_conversations.append(conversation)
            conversation = draw.choice(open_conversations)
            said = turns[conversation]
            said.append(text(f"{conversation} asks {len(said)}", draw.randrange(30, 900)))
            went[conversation].append(router.send(chat(*said, system=prompt)))
            said.append(text(f"answer to {conversation} {len(said)}", 400))
            if len(said) == 6:
                open_conversations.remove(conversation)
        share = Counter(where for places in went.values() for where in places)
        assert share.total() == 1002
        assert len(share) == 4
        assert max(share.values()) <= 0.45 * share.total()
        together = sum(places.count(places[0]) for places in went.values())
        assert together >= 0.95 * share.total()


class TestOnePrefixAtThreeTimesTheThreshold:
    RULE = SpillRule()

    def burst(self, router: Router, keys: Callable[[int], BlockKeys]) -> list[str]:
        """48 requests of which none ends; the reasons of their picks."""
        router.finish_all()
        reasons: list[str] = []
        for number in range(48):
            now = router.pool.snapshot(0.0)
            pick = router.strategy.pick(keys(number), now, router.draw)
            chosen = now.addresses.index(pick.ranked[0])
            bound = self.RULE.bound(now.in_flight)
            assert now.in_flight[chosen] < bound or now.in_flight[chosen] == now.in_flight.min()
            router.running.append(router.pool.take(pick.ranked[0], 0.0))
            reasons.append(pick.reason)
            loads = router.loads()
            assert loads[0] > 0 or loads[-1] <= self.RULE.bound(router.pool.snapshot(0.0).in_flight)
        assert router.loads()[0] > 0
        assert router.loads()[-1] <= 16
        return reasons

    @pytest.mark.parametrize("name", ["auto", "fixed"])
    def test_an_identical_prompt_spills_and_comes_back(self, name: str) -> None:
        router = Router(4, strategies()[name])
        prompt = chat(text("popular", 4000))
        home = router.send(prompt)
        for _ in range(5):
            reasons = self.burst(router, lambda _: prompt)
            assert reasons[:8] == ["prefix"] * 8
            assert reasons.count("spill") > 16
            router.finish_all()
            assert [router.send(prompt) for _ in range(6)] == [home] * 6

    def test_one_document_with_many_questions_among_other_traffic_spills_and_comes_back(self) -> None:
        router = Router(4)

        def ask(number: int) -> BlockKeys:
            return chat(text("document", 4000) + text(f"question {number}", 300))

        home = router.send(ask(-1))
        for number in range(600):
            router.send(chat(text(f"other {number % 30}", 2000) + text(f"other question {number}", 300)))
        assert "spill" in self.burst(router, ask)
        router.finish_all()
        assert [router.send(ask(100 + number)) for number in range(6)] == [home] * 6

    def test_one_document_that_is_all_the_traffic_ends_up_on_every_endpoint(self) -> None:
        router = Router(4)

        def ask(number: int) -> BlockKeys:
            return chat(text("document", 4000) + text(f"question {number}", 300))

        self.burst(router, ask)
        router.finish_all()
        share = Counter(router.send(ask(100 + number)) for number in range(400))
        assert len(share) == 4
        assert max(share.values()) < 0.35 * share.total()
        # And a question asked again comes to where it was answered.
        assert router.send(ask(150)) == router.send(ask(150))


class TestSevenEndpointsAndTwoThousandPrefixes:
    PREFIXES = 2000

    def place(self, router: Router, limit: int | None) -> list[str]:
        return [
            router.send(chat(text(f"prefix {number}", 1200), limit=limit)) for number in range(self.PREFIXES)
        ]

    @pytest.mark.parametrize(("name", "limit"), [("auto", None), ("fixed", 1024)])
    def test_one_that_leaves_moves_only_its_own_share_and_finds_it_when_it_comes_back(
        self, name: str, limit: int | None
    ) -> None:
        router = Router(7, strategies()[name], concurrency=1)
        before = self.place(router, limit)
        leaving = addresses(7)[3]
        router.pool.set_endpoints(set(addresses(7)) - {leaving})
        after = self.place(router, limit)
        moved = [was for was, now in zip(before, after, strict=True) if was != now]
        assert set(moved) == {leaving}
        assert len(moved) <= 1.25 * self.PREFIXES / 7
        assert max(Counter(after).values()) < 1.25 * self.PREFIXES / 6
        router.pool.set_endpoints(addresses(7))
        assert self.place(router, limit) == before

    @pytest.mark.parametrize(("name", "limit"), [("auto", None), ("fixed", 1024)])
    def test_one_that_joins_takes_only_its_own_share(self, name: str, limit: int | None) -> None:
        router = Router(7, strategies()[name], concurrency=1)
        before = self.place(router, limit)
        router.pool.set_endpoints(addresses(8))
        after = self.place(router, limit)
        moved = [now for was, now in zip(before, after, strict=True) if was != now]
        assert set(moved) == {addresses(8)[7]}
        assert len(moved) <= 1.25 * self.PREFIXES / 8

    def test_a_suspect_moves_only_its_own_prefixes_and_gets_them_back(self) -> None:
        router = Router(7, concurrency=1)
        before = self.place(router, None)
        suspect = addresses(7)[2]
        router.pool.missed(suspect, 0.0)
        after = self.place(router, None)
        assert {was for was, now in zip(before, after, strict=True) if was != now} == {suspect}
        assert suspect not in after
        router.pool.served(suspect, 0.5)
        assert self.place(router, None) == before


class TestAnOverloadedFirstChoice:
    def crowded(self) -> tuple[Router, str, list[list[str]]]:
        """A router, where they crowd, and conversations whose first messages begin alike, begun before that
        was known to be shared.
        """
        router = Router(4)
        shared = text("shared", 3000)
        early = [[shared + text(f"early {number}", 600)] for number in range(20)]
        homes = {router.send(chat(*said)) for said in early}
        assert len(homes) == 1
        for number in range(200):
            router.send(chat(shared + text(f"later {number}", 600)))
        router.finish_all()
        return router, homes.pop(), early

    def test_conversations_crowded_on_one_endpoint_stay_there_while_it_has_room(self) -> None:
        router, crowded, early = self.crowded()
        for said in early:
            assert router.send(chat(*said, "answer", "and then?")) == crowded

    def test_once_it_has_no_room_they_move_to_homes_of_their_own_for_good(self) -> None:
        router, crowded, early = self.crowded()
        full = [router.pool.take(crowded, 0.0) for _ in range(16)]
        moved = {}
        for number, said in enumerate(early):
            moved[number] = router.send(chat(*said, "answer", "and then?"))
        assert crowded not in moved.values()
        assert len(set(moved.values())) == 3
        for token in full:
            token.release()
        router.finish_all()
        again = {
            number: router.send(chat(*said, "answer", "and then?", "answer", "why?"))
            for number, said in enumerate(early)
        }
        came_back = [number for number in moved if again[number] == crowded]
        # Those whose own part has its home on the crowded endpoint only spilled.
        assert all(again[number] == moved[number] for number in moved if number not in came_back)
        assert len(came_back) < len(early) / 2

    def test_the_pick_names_the_home_it_left_and_the_depth_that_placed_it(self) -> None:
        router = Router(4)
        keys = chat(text("popular", 4000))
        home = router.send(keys)
        for _ in range(16):
            router.pool.take(home, 0.0)
        pick = router.pick(keys)
        assert pick.reason == "spill"
        assert pick.home == home != pick.ranked[0]
        assert home in pick.ranked
        assert pick.depth == 0


def test_a_new_rule_keeps_what_the_old_strategy_had_learnt() -> None:
    old = build("PREFIX_AWARE")
    router = Router(4, old)
    system = text("shared", 3000)
    early = chat(text("early", 600), system=system)
    home = router.send(early)
    for number in range(200):
        router.send(chat(text(f"later {number}", 600), system=system))
    router.strategy = build("PREFIX_AWARE", concurrency_threshold=32, before=old)
    assert router.send(early) == home
    assert router.pick(early).depth == 0


def test_a_request_that_is_shed_does_not_count_as_traffic() -> None:
    router = Router(1, build("PREFIX_AWARE", max_in_flight=1), concurrency=2)
    router.send(chat("first"))
    refused = chat(text("refused", 500))
    assert router.pick(refused).reason == "shed"
    router.finish_all()
    strategy = router.strategy
    depths = getattr(strategy, "depths", None)
    assert depths is not None
    assert depths.look(refused.keys, 1).known == []


class TestAgentsThatShareASystemPrompt:
    """A hundred conversations behind one long system prompt, from the first request on."""

    @pytest.mark.parametrize("examples", [0, 2], ids=["system prompt", "and examples"])
    def test_they_are_spread_and_each_stays_where_it_began(self, examples: int) -> None:
        router = Router(4)
        system = text("agents", 70_000)
        shown = [text(f"example {number}", 500) for number in range(examples)]
        homes: dict[int, set[str]] = {agent: set() for agent in range(100)}
        served: Counter[str] = Counter()
        for turn in range(3):
            for agent, at in homes.items():
                said = [text(f"task {agent} {number}", 800) for number in range(2 * turn + 1)]
                home = router.send(chat(*shown, *said, system=system))
                router.finish_all()
                at.add(home)
                served[home] += 1
        assert [len(at) for at in homes.values()] == [1] * 100
        assert len(served) == 4
        assert max(served.values()) <= 0.4 * 300

    def test_a_system_prompt_of_many_keeps_its_own_home_whatever_is_asked(self) -> None:
        router = Router(4)
        draw = random.Random(7)
        homes: dict[int, set[str]] = {app: set() for app in range(50)}
        for number in range(1000):
            app = draw.randrange(50)
            homes[app].add(router.send(chat(text(f"q {number}", 60), system=text(f"app {app}", 900))))
            router.finish_all()
        assert [len(at) for at in homes.values()] == [1] * 50
