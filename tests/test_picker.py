"""From a question to an answer: which pool, which endpoint, and what becomes of the count."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import dataclass

import pytest
from prometheus_client import CollectorRegistry

from extproc.config import parse
from extproc.messages import Origin
from extproc.metrics import Metrics
from extproc.picker import Pick, Picker
from extproc.pool.discovery.found import NodeCache
from extproc.pools import Pools
from extproc.stream import Answer, Question, Refused

ONE_POOL = """
pools:
- name: llama
  endpoints: {static: ["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80", "10.0.0.4:80"]}
"""


@dataclass
class Clock:
    now: float = 100.0

    def __call__(self) -> float:
        return self.now


class Router:
    """A picker with its pools, configured from text."""

    def __init__(self, text: str) -> None:
        self.clock = Clock()
        self.metrics = Metrics(CollectorRegistry())
        self.picker = Picker(self.metrics, self.clock, random.Random(1))
        self.pools = Pools(self.picker, self.metrics, lambda: None, clock=self.clock)
        self.configure(text)

    def configure(self, text: str) -> None:
        self.pools.apply(parse(text, "test").pools)

    def ask(
        self, body: bytes, *, route: str = "", hint: str = "", subset: tuple[str, ...] | None = None
    ) -> Answer:
        origin = Origin("/v1/chat/completions", "", route, None, subset)
        return self.picker.pick(Question(origin, body, complete=True), hint)

    def pin(
        self, body: bytes, *, route: str = "", hint: str = "", subset: tuple[str, ...] | None = None
    ) -> Pick:
        answer = self.ask(body, route=route, hint=hint, subset=subset)
        assert isinstance(answer, Pick)
        return answer

    def in_flight(self) -> dict[str, dict[str, int]]:
        return {state.name: dict(state.in_flight) for state in self.pools.states()}

    def count(self, name: str, **labels: str) -> float:
        return self.metrics.registry.get_sample_value(name, labels) or 0.0


def chat(text: str, model: str = "llama-3") -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": text}], "model": model}).encode()


def first(pick: Pick) -> str:
    return pick.destination.split(",")[0]


def test_equal_prefixes_get_the_same_endpoint_and_the_others_follow_to_retry_on() -> None:
    router = Router(ONE_POOL)
    picks = [router.pin(chat("a long story " * 2000 + str(i))) for i in range(5)]
    assert len({first(pick) for pick in picks}) == 1
    assert all(len(set(pick.destination.split(","))) == 4 for pick in picks)


def test_a_request_is_in_flight_from_its_pick_to_its_release() -> None:
    router = Router(ONE_POOL)
    pick = router.pin(chat("hello"))
    assert router.in_flight()["llama"][first(pick)] == 1
    pick.release()
    pick.release()
    assert set(router.in_flight()["llama"].values()) == {0}


def test_the_count_moves_to_the_endpoint_that_served_and_the_first_choice_is_in_doubt() -> None:
    router = Router(ONE_POOL)
    pick = router.pin(chat("hello"))
    home, other = pick.destination.split(",")[:2]
    pick.answered(other, 200)
    assert router.in_flight()["llama"][home] == 0
    assert router.in_flight()["llama"][other] == 1
    assert first(router.pin(chat("hello"))) != home
    router.clock.now += 60
    assert first(router.pin(chat("hello"))) == home


def test_where_the_pin_may_have_come_too_late_the_count_moves_and_nobody_is_in_doubt() -> None:
    router = Router(ONE_POOL)
    pick = router.pin(chat("hello"))
    home, other = pick.destination.split(",")[:2]
    pick.answered(other, 200, tried=False)
    assert router.in_flight()["llama"][home] == 0
    assert router.in_flight()["llama"][other] == 1
    assert not next(router.pools.states()).suspects
    assert router.count("extproc_served_total", pool="llama", outcome="untried") == 1
    assert router.count("extproc_served_total", pool="llama", outcome="retry") == 0


def test_the_endpoint_that_computed_a_prompt_instead_gets_it_again() -> None:
    router = Router(ONE_POOL)
    story = chat("a long story " * 4000)
    pick = router.pin(story)
    other = pick.destination.split(",")[1]
    pick.answered(other, 200)
    pick.release()
    router.clock.now += 0.1
    again = router.pin(story)
    assert first(again) == other
    again.release()
    kept = {"pool": "llama", "strategy": "PREFIX_AWARE", "reason": "prefix", "node_cache": "unknown"}
    assert router.count("extproc_requests_total", **kept) == 1


@pytest.mark.parametrize(("served", "status"), [(True, 404), (True, 503), (False, 503)])
def test_an_error_at_once_says_nothing_of_the_prompts_that_wait(served: bool, status: int) -> None:
    router = Router(ONE_POOL)
    pool = router.picker._targets[0].pool
    story = chat("a long story " * 4000)
    waits, refused = router.pin(story), router.pin(story)
    home = first(refused)

    def waiting() -> float:
        seen = pool.snapshot(router.clock.now)
        assert seen.queues is not None
        return float(seen.queues.tokens[seen.addresses.index(home)])

    assert first(waits) == home
    refused.answered(home if served else "", status)
    refused.release()
    assert waiting() > 4000 * 13 / 4
    waits.answered(home, 200)
    waits.release()
    assert waiting() == pytest.approx(0, abs=1)


def test_the_endpoint_that_served_is_known_however_it_is_spelt() -> None:
    router = Router('pools: [{name: a, endpoints: {static: ["[2001:db8::1]:80"]}}]')
    pick = router.pin(b"")
    pick.answered("[2001:DB8:0::1]:080", 200)
    assert not next(router.pools.states()).suspects
    assert router.in_flight() == {"a": {"[2001:db8::1]:80": 1}}


@pytest.mark.parametrize("served", ["2001:db8::1:80", "envoy://internal", "10.0.0.1", 'evil"\n\x1b:80', ":"])
def test_what_is_no_address_says_nothing_of_who_served(served: str) -> None:
    router = Router(ONE_POOL)
    pick = router.pin(b"")
    before = router.in_flight()
    pick.answered(served, 200)
    assert router.in_flight() == before
    assert not next(router.pools.states()).suspects
    assert router.count("extproc_served_total", pool="llama", outcome="none") == 1


def test_a_prompt_waits_where_it_was_sent_until_its_response_has_ended_or_it_was_given_up() -> None:
    router = Router(ONE_POOL)
    pool = router.picker._targets[0].pool

    def waiting(address: str) -> float:
        seen = pool.snapshot(router.clock.now)
        assert seen.queues is not None
        return float(seen.queues.tokens[seen.addresses.index(address)])

    story = chat("a long story " * 4000)
    one, two, three = (router.pin(story) for _ in range(3))
    home = first(one)
    assert first(two) == first(three) == home
    whole = waiting(home)
    assert whole > 4000 * 13 / 4
    # Given up before an answer: nothing is known of those before it.
    three.release()
    assert 0.9 * whole < waiting(home) < whole
    two.answered(home, 200)
    two.release()
    assert waiting(home) == pytest.approx(0, abs=1)
    one.release()
    assert router.in_flight()["llama"] == dict.fromkeys(pool.addresses, 0)


def test_a_gateway_that_does_not_say_who_served_puts_nobody_in_doubt() -> None:
    router = Router(ONE_POOL)
    pick = router.pin(chat("hello " * 2000))
    pick.answered("", 503)
    assert first(router.pin(chat("hello " * 2000))) == first(pick)
    assert router.count("extproc_served_total", pool="llama", outcome="none") == 1


@pytest.mark.parametrize("body", [b"", b"\xff\xfe\x00binary", b"[]", b"{", b'{"messages": 7}', b"null"])
def test_a_body_that_is_no_prompt_is_still_pinned(body: bytes) -> None:
    assert first(Router(ONE_POOL).pin(body)).startswith("10.0.0.")


@pytest.mark.parametrize("body", [chat("a long story " * 50), b""])
@pytest.mark.parametrize("strategy", ["PREFIX_AWARE", "LEAST_OUTSTANDING_REQUESTS", "RANDOM"])
def test_only_the_endpoints_that_the_gateway_names_are_picked(body: bytes, strategy: str) -> None:
    router = Router(ONE_POOL.rstrip() + f"\n  strategy: {strategy}\n")
    subset = ("10.0.0.4:80", "10.0.0.2", "10.0.0.99:80", "no address")
    for _ in range(20):
        assert set(router.pin(body, subset=subset).destination.split(",")) == {"10.0.0.2:80", "10.0.0.4:80"}
    assert len(router.pin(body).destination.split(",")) == 4


@pytest.mark.parametrize("subset", [(), ("10.0.0.99:80",), ("10.0.0.1:81",), ("evil",)])
def test_a_request_for_none_of_the_pool_s_endpoints_is_refused_with_503(subset: tuple[str, ...]) -> None:
    router = Router(ONE_POOL)
    answer = router.ask(chat("x"), subset=subset)
    assert isinstance(answer, Refused)
    assert (answer.status, answer.message) == (503, "no endpoint of those that the gateway names is ready")
    labels = {"pool": "llama", "strategy": "PREFIX_AWARE", "reason": "empty", "node_cache": ""}
    assert router.count("extproc_requests_total", **labels) == 1


def test_a_named_endpoint_that_is_full_is_429_though_others_have_room() -> None:
    router = Router(ONE_POOL.rstrip() + "\n  shed: {maxInFlight: 1}\n")
    router.pin(chat("x"), subset=("10.0.0.3:80",))
    answer = router.ask(chat("y"), subset=("10.0.0.3:80",))
    assert isinstance(answer, Refused)
    assert answer.status == 429
    assert first(router.pin(chat("y"))) != "10.0.0.3:80"


def test_a_pool_that_does_not_know_its_endpoints_cannot_keep_to_some_of_them() -> None:
    router = Router(ONE_POOL)
    router.picker._targets[0].pool.set_endpoints([])
    router.picker._targets[0].pool.synced = False
    answer = router.ask(chat("x"), subset=("10.0.0.1:80",))
    assert isinstance(answer, Refused)
    assert answer.status == 503


def test_a_pool_told_to_ignores_what_the_gateway_names_and_learns_on_over_the_change() -> None:
    router = Router(ONE_POOL)
    strategy = router.picker._targets[0].strategy
    router.configure(ONE_POOL.rstrip() + "\n  endpointSubset: false\n")
    assert router.picker._targets[0].strategy is strategy
    assert len(router.pin(b"", subset=("10.0.0.1:80",)).destination.split(",")) == 4


TWO_POOLS = """
pools:
- name: small
  match: {route: "llm-*", models: ["llama-*"]}
  endpoints: {static: ["10.0.1.1:80"]}
- name: large
  match: {route: "llm-*"}
  endpoints: {static: ["10.0.2.1:80"]}
- name: private
  match: {metadata: secret}
  endpoints: {static: ["10.0.3.1:80"]}
"""


@pytest.mark.parametrize(
    ("route", "hint", "model", "endpoint"),
    [
        ("llm-chat", "", "llama-3", "10.0.1.1:80"),
        ("llm-chat", "", "qwen", "10.0.2.1:80"),
        ("", "secret", "llama-3", "10.0.3.1:80"),
    ],
)
def test_the_route_allows_pools_and_the_model_chooses_among_them(
    route: str, hint: str, model: str, endpoint: str
) -> None:
    assert first(Router(TWO_POOLS).pin(chat("x", model), route=route, hint=hint)) == endpoint


def test_a_model_never_reaches_a_pool_that_the_route_does_not_allow() -> None:
    router = Router(TWO_POOLS)
    assert router.ask(chat("x", "llama-3"), route="other") is None
    assert router.count("extproc_requests_total", pool="", strategy="", reason="unpinned", node_cache="") == 1


def test_a_pool_that_never_learnt_its_endpoints_leaves_requests_to_the_gateway() -> None:
    router = Router(TWO_POOLS)
    target = router.picker._targets[0]
    target.pool.synced = False
    assert router.ask(chat("x", "llama-3"), route="llm-a") is None


def test_a_pool_that_is_known_to_be_empty_refuses_with_503() -> None:
    router = Router(ONE_POOL)
    router.picker._targets[0].pool.set_endpoints([])
    answer = router.ask(chat("x"))
    assert isinstance(answer, Refused)
    assert answer.status == 503


def test_shedding_refuses_with_429_once_every_endpoint_is_full_and_serves_again_after() -> None:
    router = Router(ONE_POOL.rstrip() + "\n  shed: {maxInFlight: 2}\n")
    picks = [router.pin(chat(f"story {i}")) for i in range(8)]
    assert set(router.in_flight()["llama"].values()) == {2}
    refused = router.ask(chat("one more"))
    assert isinstance(refused, Refused)
    assert (refused.status, refused.retry_after) == (429, 1)
    picks[0].release()
    router.pin(chat("one more"))


def test_a_reload_keeps_counts_and_what_was_learnt_and_changes_the_rest() -> None:
    router = Router(ONE_POOL)
    pick = router.pin(chat("hello"))
    strategy = router.picker._targets[0].strategy
    router.configure(ONE_POOL.replace(', "10.0.0.4:80"', ""))
    assert router.picker._targets[0].strategy is strategy
    assert router.in_flight()["llama"][first(pick)] == 1
    router.configure(ONE_POOL.rstrip() + "\n  strategy: RANDOM\n")
    assert router.picker._targets[0].strategy.name == "RANDOM"
    pick.release()
    assert set(router.in_flight()["llama"].values()) == {0}


def test_an_endpoint_that_joins_a_running_pool_is_eased_in_unless_that_is_off() -> None:
    router = Router(ONE_POOL)
    pool = router.picker._targets[0].pool
    strategy = router.picker._targets[0].strategy
    assert pool.snapshot(router.clock.now).ease is None
    five = ONE_POOL.replace('"]}', '", "10.0.0.5:80"]}')
    router.configure(five.rstrip() + "\n  slowStart: {window: 10s, leastShare: 0.2}\n")
    assert router.picker._targets[0].strategy is strategy
    ease = pool.snapshot(router.clock.now + 5.0).ease
    assert ease is not None
    assert ease.tolist() == pytest.approx([1, 1, 1, 1, 0.6])
    assert pool.snapshot(router.clock.now + 10.0).ease is None
    router.configure(five.rstrip() + "\n  slowStart: false\n")
    assert pool.snapshot(router.clock.now).ease is None


def test_a_pool_that_left_the_configuration_takes_no_more_requests() -> None:
    router = Router(TWO_POOLS)
    pick = router.pin(chat("x", "qwen"), route="llm-a")
    router.configure(ONE_POOL)
    assert [state.name for state in router.pools.states()] == ["llama"]
    pick.answered("10.0.2.1:80", 200)
    pick.release()


def test_a_request_counts_by_whether_the_node_of_its_endpoint_has_the_weights() -> None:
    router = Router("pools: [{name: a, strategy: RANDOM, endpoints: {static: ['10.0.0.1:80']}}]")
    pool = router.picker.targets[0].pool
    said: list[tuple[str, dict[str, NodeCache]]] = [
        ("unknown", {}),
        ("cold", {"10.0.0.1:80": "cold"}),
        ("warm", {"10.0.0.1:80": "warm"}),
        ("unknown", {"10.0.0.9:80": "warm"}),
    ]
    for word, caches in said:
        labels = {"pool": "a", "strategy": "RANDOM", "reason": "random", "node_cache": word}
        before = router.count("extproc_requests_total", **labels)
        pool.set_endpoints(["10.0.0.1:80"], router.clock(), caches)
        router.pin(chat("x"))
        assert router.count("extproc_requests_total", **labels) == before + 1
        assert next(router.pools.states()).node_caches == caches


def test_a_compressed_body_is_keyed_like_the_same_body_in_the_clear() -> None:
    router = Router(ONE_POOL)
    body = chat("a long story " * 2000)
    origin = Origin("/v1/chat/completions", "gzip", "", None)
    packed = router.picker.pick(Question(origin, gzip.compress(body), complete=True), "")
    assert isinstance(packed, Pick)
    assert first(packed) == first(router.pin(body))
    for reason in ("new", "prefix"):
        labels = {"pool": "llama", "strategy": "PREFIX_AWARE", "reason": reason, "node_cache": "unknown"}
        assert router.count("extproc_requests_total", **labels) == 1
