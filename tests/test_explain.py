"""Explanations: the figures are those that the pick goes by, and the words are those of the figures."""

from __future__ import annotations

import json
import random
import secrets
from dataclasses import asdict
from typing import NamedTuple

import orjson
import pytest
from pydantic import TypeAdapter

from extproc.config import Match
from extproc.explain import Asked, ExplainError, explain
from extproc.explanation import Explanation, Pool
from extproc.explanation_text import MOST_ROWS, text
from extproc.pool.pool import InFlight
from extproc.pool.pool import Pool as LivePool
from extproc.pool.reports import EngineReport
from extproc.prefix import block_keys
from extproc.prompt import read
from extproc.routing import Strategy, build
from extproc.routing.sent import TOKEN_BYTES
from tests.prompt.test_canary import bodies
from tests.routing.traffic import addresses
from tests.routing.traffic import text as made_up

SYSTEM = made_up("system", 4000)


def chat(*turns: str, system: str = "", **more: object) -> bytes:
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": ("user", "assistant")[at % 2], "content": turn} for at, turn in enumerate(turns)]
    return json.dumps({"model": "llama", "messages": messages, **more}).encode()


class Target(NamedTuple):
    pool: LivePool
    strategy: Strategy
    match: Match | None = None
    honours_subset: bool = True


class Router:
    """A pool, its strategy, and requests that stay in flight."""

    def __init__(self, endpoints: int = 3, strategy: Strategy | None = None) -> None:
        self.target = Target(LivePool("llama"), strategy or build("PREFIX_AWARE"))
        self.pool = self.target.pool
        self.pool.set_endpoints(addresses(endpoints))
        self.now = 0.0

    def send(self, body: bytes, times: int = 1, *, ends: bool = False) -> str:
        """Where the request goes, as the picker has it."""
        strategy, draw = self.target.strategy, random.Random(1)
        for _ in range(times):
            prompt = read("", body, True)
            keys = None if prompt is None else block_keys(prompt, strategy.prefix_length)
            pick = strategy.pick(keys if strategy.wants_keys else None, self.pool.snapshot(self.now), draw)
            taken = self.pool.take(pick.ranked[0], self.now, pick.uncached)
            if ends:
                taken.release(self.now)
        return pick.ranked[0]

    def load(self, address: str, requests: int, tokens: float = 0.0) -> list[InFlight]:
        return [self.pool.take(address, self.now, tokens) for _ in range(requests)]

    def explain(self, body: bytes, *, show_text: bool = False) -> Explanation:
        return explain(Asked(body, show_text=show_text), [self.target], self.now, random.Random(1))


def pool_of(explanation: Explanation) -> Pool:
    assert explanation.pool is not None
    return explanation.pool


class TestThePrompt:
    def test_shows_its_api_scope_and_segments_by_their_sizes(self) -> None:
        body = chat("what?", system=SYSTEM, cache_salt="secret", tools=[{"name": "t"}], lora_path="adapter-1")
        explained = explain(Asked(body), [], 0.0, random.Random())
        assert (explained.bytes, explained.pool, explained.why) == (len(body), None, ())
        prompt = explained.prompt
        assert prompt is not None
        assert prompt.api == "chat"
        assert (prompt.scope.model, prompt.scope.adapter, prompt.scope.salt) == ("llama", "adapter-1", True)
        assert len(prompt.scope.tools) == 32
        assert [(one.kind, one.bytes, one.closed) for one in prompt.content] == [
            ("text/message/system", 4000, True),
            ("text/message/user", 5, True),
        ]

    def test_shows_every_block_key_where_it_ends_and_in_which_segment(self) -> None:
        body = chat(made_up("question", 3000), "answer", system=SYSTEM)
        understood = read("", body, True)
        assert understood is not None
        keys = block_keys(understood)
        prompt = explain(Asked(body), [], 0.0, random.Random()).prompt
        assert prompt is not None
        assert [(int(one.key, 16), one.end) for one in prompt.blocks] == list(zip(*keys[:2], strict=True))
        ends = {one.segment: one.end for one in prompt.blocks}
        assert ends == {1: 4000, 2: 7000, 3: 7006}
        assert {one.sent_to for one in prompt.blocks} == {None}

    def test_that_was_cut_says_so(self) -> None:
        body = chat(made_up("question", 3000))[:1500]
        explained = explain(Asked(body, complete=False), [], 0.0, random.Random())
        assert explained.prompt is not None
        assert explained.prompt.scope.partial
        assert [one.closed for one in explained.prompt.content] == [False]
        assert "does not show all of model" in explained.notes[0]

    def test_that_is_none_is_routed_by_load(self) -> None:
        explained = Router().explain(b"\xff\xfe binary")
        assert explained.prompt is None
        assert pool_of(explained).reason == "load"
        assert explained.why[0].startswith("Nothing is known of the prompt. It costs about the same on 3")

    def test_is_keyed_up_to_the_prefix_length(self) -> None:
        router = Router(strategy=build("PREFIX_AWARE", prefix_length=1024))
        prompt = router.explain(chat(made_up("question", 3000))).prompt
        assert prompt is not None
        assert prompt.blocks[-1].end == 1024


class TestPrefixAware:
    def test_a_prompt_that_nobody_was_sent_goes_by_its_order(self) -> None:
        router = Router()
        explained = router.explain(chat(made_up("new", 4000)))
        pool = pool_of(explained)
        assert (pool.reason, pool.tokens, pool.shared_tokens) == ("new", 1000, 0)
        assert [(one.cached, one.to_compute, one.growth) for one in pool.endpoints] == [(0, 1000, 1.0)] * 3
        assert [one.choice for one in pool.endpoints if one.address == pool.first] == [1]
        assert pool.retry == tuple(
            one.address for one in sorted(pool.endpoints, key=lambda one: one.choice or 0)[1:]
        )
        assert explained.why == (
            "No endpoint was sent any of this prompt.",
            "It costs about the same on 3 endpoints, and the HRW order of the first block that is not shared"
            f" puts {pool.first} first.",
        )

    def test_one_that_an_endpoint_was_sent_stays_there(self) -> None:
        router = Router()
        home = router.send(chat(made_up("one", 4000)))
        body = chat(made_up("one", 4000), "answer", made_up("two", 800))
        explained = router.explain(body)
        pool = pool_of(explained)
        cached = {one.address: one.cached for one in pool.endpoints}
        assert (pool.first, pool.reason, cached[home]) == (home, "prefix", 1000)
        at_home = next(one for one in pool.endpoints if one.address == home)
        assert (at_home.in_flight, at_home.waiting, at_home.to_compute) == (1, 1256, 201)
        (why,) = explained.why
        assert why.startswith(
            f"{home} was sent 1,000 of the prompt's 1,201 tokens before. 1,256 tokens wait there, which costs"
            " less than computing the prompt anew on "
        )
        assert explained.prompt is not None
        assert {one.sent_to for one in explained.prompt.blocks if one.end <= 4000} == {1}
        assert {one.sent_to for one in explained.prompt.blocks if one.end > 4000} == {0}

    def test_with_an_empty_queue_at_its_home_it_says_so(self) -> None:
        router = Router()
        home = router.send(chat(made_up("one", 4000)), ends=True)
        router.now = 100.0
        (why,) = router.explain(chat(made_up("one", 4000))).why
        assert why.startswith(
            f"{home} was sent all of the prompt's 1,000 tokens before, and nothing waits there. The next best"
            " is computing the prompt anew on "
        )

    def test_one_whose_home_has_a_long_queue_leaves_it(self) -> None:
        router = Router()
        home = router.send(chat(made_up("one", 4000)))
        router.load(home, 20, 1000)
        explained = router.explain(chat(made_up("one", 4000)))
        pool = pool_of(explained)
        assert pool.reason == "spill"
        assert pool.first != home
        assert explained.why == (
            f"{home} was sent all of the prompt's 1,000 tokens before, but 26,376 tokens wait there and 21"
            f" requests are in flight. That costs more than computing the prompt anew on {pool.first}.",
        )
        growth = {one.address: one.growth for one in pool.endpoints}
        assert growth[pool.first or ""] == 1.0
        assert (growth[home] or 0) > 1.0

    def test_one_whose_home_is_full_leaves_it(self) -> None:
        router = Router(strategy=build("PREFIX_AWARE", concurrency_threshold=2))
        home = router.send(chat(made_up("one", 400_000)), times=2)
        explained = router.explain(chat(made_up("one", 400_000)))
        pool = pool_of(explained)
        assert (pool.reason, pool.bound) == ("spill", 2)
        assert [one.full for one in pool.endpoints if one.address == home] == [True]
        assert explained.why[0].startswith(
            f"{home} was sent all of the prompt's 100,000 tokens before, but it is full: it has 2 requests in"
            " flight where 2 are the limit."
        )

    def test_one_whose_home_did_not_serve_leaves_it(self) -> None:
        router = Router()
        home = router.send(chat(made_up("one", 4000)))
        router.pool.missed(home, router.now)
        explained = router.explain(chat(made_up("one", 4000)))
        pool = pool_of(explained)
        at_home = next(one for one in pool.endpoints if one.address == home)
        assert (pool.reason, at_home.eligible, at_home.suspect) == ("spill", False, True)
        assert "but it is kept out for a while because it did not serve. " in explained.why[0]

    def test_an_endpoint_that_is_new_is_eased_in(self) -> None:
        router = Router(2)
        router.pool.set_endpoints(addresses(3), router.now)
        newcomer = addresses(3)[2]
        explained = router.explain(chat(made_up("one", 4000)))
        pool = pool_of(explained)
        assert {one.address: one.share for one in pool.endpoints}[newcomer] == 0.1
        assert (pool.first, pool.retry[-1]) != (newcomer, newcomer)
        assert "eased in at 10%" in text(explained)

    def test_what_most_requests_begin_with_is_told_from_the_rest(self) -> None:
        router = Router()
        for number in range(40):
            router.send(chat(made_up(f"question {number}", 2000), system=SYSTEM), ends=True)
        explained = router.explain(chat(made_up("another", 2000), system=SYSTEM))
        pool, prompt = pool_of(explained), explained.prompt
        assert (pool.reason, pool.shared_tokens) == ("new", 1000)
        assert explained.why[0] == (
            "No endpoint was sent more of this prompt than what many requests begin with, its first 1,000"
            " tokens."
        )
        assert prompt is not None
        assert {one.end <= 4000: one.shared for one in prompt.blocks} == {True: True, False: False}
        assert {one.sent_to for one in prompt.blocks if not one.shared} == {0}

    def test_of_the_only_endpoint_it_says_that_there_is_no_other(self) -> None:
        router = Router(1)
        router.send(chat(made_up("one", 4000)), ends=True)
        (why,) = router.explain(chat(made_up("one", 4000))).why
        assert why.endswith(", and no other endpoint may be first choice now.")

    def test_what_other_routers_do_is_noted(self) -> None:
        router = Router()
        for now in range(1, 20):
            for address in addresses(3):
                router.pool.report(address, EngineReport(running=10, waiting=0), float(now))
        router.load(addresses(1)[0], 3)
        router.now = 20.0
        (known,) = [note for note in router.explain(chat("x")).notes if "knows of" in note]
        assert known.startswith("This router knows of 1% of the traffic. Another one has probably sent")
        router.pool.heard(addresses(1)[0], 10_000, 20.0)
        router.now = 20.5
        assert [note.split(" tokens")[0] for note in router.explain(chat("x")).notes] == [
            "Other routers may have sent 5,128"
        ]


class TestAPrefixLength:
    def strategy(self, max_in_flight: int | None = None) -> Strategy:
        return build("PREFIX_AWARE", prefix_length=1024, max_in_flight=max_in_flight)

    def test_places_by_one_key_and_says_which(self) -> None:
        explained = Router(strategy=self.strategy()).explain(chat(made_up("one", 4000)))
        pool, prompt = pool_of(explained), explained.prompt
        assert prompt is not None
        assert (pool.reason, pool.prefix_length, pool.bound) == ("prefix", 1024, 8)
        assert {one.place: one.choice for one in pool.endpoints} == {1: 1, 2: 2, 3: 3}
        assert [one.cached for one in pool.endpoints] == [None] * 3
        assert explained.why == (
            f"Up to its character 1,024 the prompt has the key {prompt.blocks[-1].key}, in whose HRW order"
            f" {pool.first} comes first. It has 0 requests in flight and its bound is 8.",
        )

    def test_leaves_a_home_without_room_for_the_next_in_order(self) -> None:
        router = Router(strategy=self.strategy())
        home = router.send(chat(made_up("one", 4000)), times=8)
        explained = router.explain(chat(made_up("one", 4000)))
        pool = pool_of(explained)
        second = next(one.address for one in pool.endpoints if one.place == 2)
        assert (pool.reason, pool.first) == ("spill", second)
        assert explained.why[0].endswith(
            f"{home} comes first. It has 8 requests in flight and its bound is 8; {second} is the next in"
            " that order with room."
        )

    def test_goes_to_the_least_busy_when_nobody_has_room(self) -> None:
        router = Router(strategy=build("PREFIX_AWARE", prefix_length=1024, concurrency_threshold=2))
        for address, requests in zip(addresses(3), (4, 2, 3), strict=True):
            router.load(address, requests)
        explained = router.explain(chat(made_up("one", 4000)))
        assert pool_of(explained).first == addresses(3)[1]
        assert explained.why[0].endswith(
            "No endpoint has room under the bound of 2, so the least busy takes it:"
            f" {addresses(3)[1]}, with 2 requests in flight."
        )

    def test_passes_over_a_home_that_did_not_serve(self) -> None:
        router = Router(strategy=self.strategy())
        home = router.send(chat(made_up("one", 4000)))
        router.pool.missed(home, router.now)
        explained = router.explain(chat(made_up("one", 4000)))
        first = pool_of(explained).first
        assert (
            f"{home} comes first, which is kept out because it did not serve, so {first} does."
            in (explained.why[0])
        )


class TestByLoadAndByChance:
    def test_the_fewest_requests_in_flight_decide(self) -> None:
        router = Router(strategy=build("LEAST_OUTSTANDING_REQUESTS"))
        for address, requests in zip(addresses(3), (4, 1, 3), strict=True):
            router.load(address, requests)
        explained = router.explain(chat("x"))
        assert [one.in_flight for one in pool_of(explained).endpoints] == [4, 1, 3]
        assert explained.why == (f"{addresses(3)[1]} has 1 request in flight, the fewest.",)

    def test_among_equals_it_was_chance(self) -> None:
        explained = Router(strategy=build("LEAST_OUTSTANDING_REQUESTS")).explain(chat("x"))
        assert explained.why == (
            f"{pool_of(explained).first} has 0 requests in flight, and none has fewer; chance chose among 3"
            " endpoints.",
        )

    def test_random_is_chance(self) -> None:
        router = Router(strategy=build("RANDOM"))
        router.pool.missed(addresses(1)[0], router.now)
        explained = router.explain(chat("x"))
        assert explained.why[0].startswith(f"Chance chose {pool_of(explained).first} of 2 endpoints")


class TestNobody:
    def test_a_pool_that_is_not_known_yet_passes_requests_unpinned(self) -> None:
        target = Target(LivePool("llama"), build("PREFIX_AWARE"))
        explained = explain(Asked(chat("x")), [target], 0.0, random.Random())
        assert (pool_of(explained).reason, pool_of(explained).first) == ("unpinned", None)
        assert "passes unpinned" in explained.why[0]

    def test_an_empty_pool_refuses_with_503(self) -> None:
        explained = Router(0).explain(chat("x"))
        assert (pool_of(explained).reason, pool_of(explained).endpoints) == ("empty", ())
        assert "refused with 503" in explained.why[0]

    @pytest.mark.parametrize("name", ["PREFIX_AWARE", "LEAST_OUTSTANDING_REQUESTS", "RANDOM"])
    @pytest.mark.parametrize("length", ["auto", 1024])
    def test_a_full_pool_sheds_with_429(self, name: str, length: int) -> None:
        router = Router(strategy=build(name, prefix_length=length, concurrency_threshold=1, max_in_flight=2))
        for address in addresses(3):
            router.load(address, 2)
        explained = router.explain(chat("x"))
        assert pool_of(explained).reason == "shed"
        assert all(one.full for one in pool_of(explained).endpoints)
        assert explained.why == (
            "Every endpoint that may be chosen has 2 requests in flight or more, as many as `shed` allows:"
            " the request is refused with 429.",
        )


class TestWhichPool:
    def targets(self, **matches: Match | None) -> list[Target]:
        return [Target(LivePool(name), build("RANDOM"), match) for name, match in matches.items()]

    def name(self, targets: list[Target], pool: str | None = None, model: str = "llama") -> str:
        asked = Asked(json.dumps({"model": model, "messages": []}).encode(), pool=pool)
        return pool_of(explain(asked, targets, 0.0, random.Random())).name

    def test_the_one_that_is_named(self) -> None:
        assert self.name(self.targets(a=Match(route="x"), b=Match(route="*")), "b") == "b"

    def test_an_unknown_one_is_refused_with_the_names_that_there_are(self) -> None:
        with pytest.raises(ExplainError, match=r"pool 'c' is unknown; there are: a, b$"):
            self.name(self.targets(a=Match(route="x"), b=Match(route="*")), "c")

    def test_else_the_one_that_lists_the_model_else_the_one_without_models(self) -> None:
        targets = self.targets(
            a=Match(route="*", models=("ll*",)), b=Match(route="*", models=("qwen",)), c=Match(route="*")
        )
        assert self.name(targets) == "a"
        assert self.name(targets, model="qwen") == "b"
        assert self.name(targets, model="other") == "c"
        notes = explain(Asked(b"{}"), targets, 0.0, random.Random()).notes
        assert notes[0].startswith("Pool c is the one that the model leads to")

    def test_where_the_gateway_decides_it_must_be_named(self) -> None:
        with pytest.raises(ExplainError, match=r"several pools .*: say which; .* a, b$"):
            self.name(self.targets(a=Match(route="x"), b=Match(route="*")))
        with pytest.raises(ExplainError, match="no pool lists this request's model"):
            self.name(self.targets(a=Match(route="*", models=("x",)), b=Match(route="*", models=("y",))))

    def test_with_a_route_the_first_that_takes_it_and_lists_the_model_as_for_a_request(self) -> None:
        targets = self.targets(
            a=Match(route="chat-*"),
            b=Match(route="chat-*", models=("ll*",)),
            c=Match(route="other", models=("ll*",)),
        )

        def name(route: str, model: str = "llama") -> str:
            body = json.dumps({"model": model, "messages": []}).encode()
            explained = explain(Asked(body, route=route), targets, 0.0, random.Random())
            assert not explained.notes
            return pool_of(explained).name

        assert [name("chat-eu"), name("chat-eu", "qwen"), name("other")] == ["b", "a", "c"]
        with pytest.raises(ExplainError, match=r"no pool takes requests of route 'x'; there are: a, b, c$"):
            name("x")
        targets.insert(0, Target(LivePool("hinted"), build("RANDOM"), Match(route=None, metadata="a")))
        assert name("chat-eu") == "b"
        with pytest.raises(ExplainError, match="no pool lists this request's model"):
            name("other", "qwen")


class TestEndpointsThatTheGatewayNames:
    def test_are_the_only_ones(self) -> None:
        router = Router()
        asked = Asked(chat("x"), subset=(addresses(3)[1], "10.9.9.9:80"))
        pool = pool_of(explain(asked, [router.target], router.now, random.Random()))
        assert [one.address for one in pool.endpoints] == [addresses(3)[1]]
        assert (pool.first, pool.retry) == (addresses(3)[1], ())

    def test_if_they_are_none_the_request_is_refused(self) -> None:
        router = Router()
        explained = explain(Asked(chat("x"), subset=("10.9.9.9:80",)), [router.target], 0.0, random.Random())
        assert pool_of(explained).reason == "empty"
        assert "None of the endpoints that the gateway names" in explained.why[0]

    def test_are_ignored_where_the_pool_says_so(self) -> None:
        router = Router()
        target = router.target._replace(honours_subset=False)
        explained = explain(Asked(chat("x"), subset=("10.9.9.9:80",)), [target], 0.0, random.Random())
        assert len(pool_of(explained).endpoints) == 3
        assert "endpointSubset: false" in explained.notes[-1]


class TestTheTextOfAPrompt:
    def test_is_in_no_part_of_an_explanation_but_its_names(self) -> None:
        canary = secrets.token_hex(16)
        router, shown = Router(), 0
        for path, body, encoding in bodies(canary):
            asked = Asked(body, path, encoding=encoding)
            explained = explain(asked, [router.target], 0.0, random.Random())
            said = asdict(explained)
            if said["prompt"] is not None:
                shown += 1
                for name in ("model", "adapter"):
                    assert said["prompt"]["scope"].pop(name) in ("", canary)
            assert canary not in repr(said)
            lines = [line for line in text(explained).splitlines() if not line.startswith("scope ")]
            assert canary not in "".join(lines)
        assert shown > 100

    def test_is_shown_when_it_is_asked_for(self) -> None:
        body = chat("What is\x1b[2J this?", system="Answer.")
        explained = Router().explain(body, show_text=True)
        assert explained.prompt is not None
        assert [one.text for one in explained.prompt.content] == ["Answer.", "What is\x1b[2J this?"]
        assert "What is\\x1b[2J this?" in text(explained)
        assert "\x1b" not in text(explained)

    def test_of_token_ids_is_the_ids(self) -> None:
        body = json.dumps({"model": "m", "prompt": [1, 22, -3]}).encode()
        prompt = Router().explain(body, show_text=True).prompt
        assert prompt is not None
        assert [(one.kind, one.text) for one in prompt.content] == [("tokens", "1 22 -3")]

    def test_names_that_a_client_chose_cannot_steer_a_terminal(self) -> None:
        shown = text(Router().explain(chat("x", model="\x1b]0;owned\x07\n\nwhy  mine", lora_path="\u202e")))
        assert all(one.isprintable() for one in shown.splitlines())
        assert "\u202e" not in shown
        assert "\n\nwhy  mine" not in shown


class TestAsTextAndJson:
    def test_json_is_read_back_as_the_same_explanation(self) -> None:
        router = Router()
        router.send(chat(made_up("one", 4000)))
        for body in (chat(made_up("one", 4000)), b"\xff"):
            explained = router.explain(body)
            assert TypeAdapter(Explanation).validate_json(orjson.dumps(explained)) == explained

    def test_long_tables_keep_the_choice_and_where_something_changes(self) -> None:
        router = Router(200)
        home = router.send(chat(made_up("one", 40_000)))
        shown = text(router.explain(chat(made_up("one", 40_000), "answer", made_up("two", 40_000))))
        lines = [line.split() for line in shown.splitlines()]
        assert [line[-1] for line in lines if line[:1] == [home]] == ["first"]
        assert [line[5] for line in lines if line[2:4] == ["40,000", "10,000"]] == ["1"]
        assert f"({200 - MOST_ROWS} more are left out here: --json has all)" in shown
        assert len(lines) < 4 * MOST_ROWS

    def test_a_count_of_tokens_is_bytes_by_four(self) -> None:
        explained = Router().explain(chat(made_up("one", 4003)))
        assert pool_of(explained).tokens == 4003 // TOKEN_BYTES
        assert "taken for 1,000 tokens" in text(explained)
