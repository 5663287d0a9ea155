"""Least growth: what it promises, and the traps it must not fall into."""

from __future__ import annotations

import random

import pytest

from extproc.pool.pool import Pool
from extproc.prefix import BlockKeys
from extproc.replay.candidates.backlog import REQUEST_TOKENS, Backlog, Speed
from extproc.replay.candidates.least_growth import EngineReport, LeastGrowth, Placed
from extproc.replay.candidates.sent import Sent
from extproc.replay.figures import summary
from extproc.replay.peers.load import LeastInFlight
from extproc.replay.policy import Learning
from extproc.replay.run import Fleet, replay
from tests.replay.traffic import BLOCK, ENGINE, conversations, request, snapshot, trace

LONG = 100


def keys(*chain: int) -> BlockKeys:
    return request(0.0, chain).keys


def long(number: int, blocks: int = LONG) -> BlockKeys:
    return keys(*range(number * 1000, number * 1000 + blocks))


class Router:
    def __init__(self, endpoints: int = 4, **settings: int) -> None:
        self.pool = Pool("llama")
        self.pool.set_endpoints([f"10.0.0.{number + 1}:8000" for number in range(endpoints)])
        self.rule = LeastGrowth(**settings)
        self.rule.set_endpoints(self.pool.addresses)
        self.draw = random.Random(1)

    def set_endpoints(self, *addresses: str) -> None:
        self.pool.set_endpoints(addresses)
        self.rule.set_endpoints(self.pool.addresses)

    def send(self, prompt: BlockKeys | None, now: float = 0.0) -> tuple[str, Placed]:
        placed = self.rule.pick(prompt, self.pool.snapshot(now), self.draw, now)
        address = placed.pick.ranked[0]
        self.pool.take(address, now)
        return address, placed


def test_a_prompt_follows_its_prefix() -> None:
    router = Router()
    home, _ = router.send(long(1))
    assert router.send(long(1), 100.0)[0] == home
    assert router.send(long(1, LONG + 5), 200.0)[0] == home


def test_prompts_that_are_new_go_where_least_is_queued() -> None:
    router = Router()
    assert len({router.send(long(number))[0] for number in range(4)}) == 4


def test_a_queue_that_costs_more_than_computing_anew_is_left() -> None:
    router = Router()
    home, _ = router.send(long(1))
    gone = [router.send(long(1), 0.0)[0] for _ in range(200)]
    first = next(at for at, address in enumerate(gone) if address != home)
    assert 5 < first < 100


def test_a_short_prefix_is_left_for_a_shorter_queue_than_a_long_one() -> None:
    left = []
    for blocks in (10, 400):
        router = Router(concurrency_threshold=1024)
        home, _ = router.send(long(1, blocks))
        asked = 0
        while router.send(long(1, blocks))[0] == home:
            asked += 1
        left.append(asked)
    assert left[0] < left[1]


def test_endpoints_at_the_threshold_come_last_whatever_they_have() -> None:
    router = Router(concurrency_threshold=3)
    home, _ = router.send(long(1))
    for at in range(2):
        assert router.send(long(1), 100.0 * at + 100)[0] == home
    assert router.send(long(1), 1000.0)[0] != home


def test_when_all_are_at_the_threshold_the_prefix_counts_again() -> None:
    router = Router(2, concurrency_threshold=1)
    home, _ = router.send(long(1))
    router.send(long(2))
    assert router.send(long(1), 1000.0)[0] == home


def test_the_count_of_an_endpoint_never_passes_the_threshold_while_another_is_below() -> None:
    draw = random.Random(3)
    router = Router(5, concurrency_threshold=6)
    for at in range(30):
        router.send(long(draw.randrange(3)), at * 0.01)
        counts = router.pool.in_flight().values()
        assert max(counts) <= 6


def test_a_system_prompt_that_all_share_does_not_draw_all_to_one_engine() -> None:
    system = list(range(400))
    arrivals = [request(n * 0.05, [*system, 10_000 + 10 * n, 10_001 + 10 * n]) for n in range(600)]
    found = summary(replay(trace(arrivals), Fleet(ENGINE, 4), lambda: Learning(LeastGrowth(1024))))
    assert found.max_over_mean < 1.3
    assert found.hit_rate > 0.9


def test_an_engine_that_joins_is_used_before_queues_are_as_long_as_its_first_prompt_takes() -> None:
    router = Router(3, concurrency_threshold=1024)
    system = list(range(400))
    for at in range(300):
        router.send(keys(*system, 10_000 + at), at * 1.0)
    router.set_endpoints(*router.pool.addresses, "10.0.0.9:8000")
    gone = [router.send(keys(*system, 20_000 + at), 300.0 + at * 0.01)[0] for at in range(60)]
    assert "10.0.0.9:8000" in gone


def test_what_an_engine_that_left_had_is_not_expected_of_the_next() -> None:
    router = Router(2)
    home, _ = router.send(long(1))
    stays = next(address for address in router.pool.addresses if address != home)
    router.set_endpoints(stays, "10.0.0.9:8000")
    placed = router.rule.pick(long(1), router.pool.snapshot(100.0), router.draw, 100.0)
    assert placed.pick.reason == "load"


def test_endpoints_that_stay_keep_what_they_have_whoever_leaves() -> None:
    router = Router(6)
    homes = [router.send(long(number))[0] for number in range(6)]
    left = homes[4:]
    router.set_endpoints(*left)
    assert [router.send(long(number), 100.0)[0] for number in (4, 5)] == left


def test_a_pick_among_some_endpoints_forgets_nothing_of_the_others() -> None:
    router = Router(4)
    home, _ = router.send(long(1))
    others = [address for address in router.pool.addresses if address != home]
    placed = router.rule.pick(long(1), router.pool.snapshot(50.0, others), router.draw, 50.0)
    assert placed.pick.ranked[0] in others
    assert router.send(long(1), 100.0)[0] in (home, placed.pick.ranked[0])
    assert (
        router.rule.pick(long(1), router.pool.snapshot(200.0, [home]), router.draw, 200.0).pick.reason
        == "prefix"
    )


def test_a_prompt_of_which_nothing_is_known_is_routed_by_backlog() -> None:
    router = Router(2)
    busy, _ = router.send(long(1))
    assert router.send(None)[0] != busy


def test_a_pick_heard_of_is_as_good_as_an_own_one() -> None:
    router = Router()
    there = router.pool.addresses[2]
    router.send(long(9))
    router.rule.heard(long(1), there, 1.0)
    assert router.send(long(1), 50.0)[0] == there


def test_equal_inputs_give_equal_picks() -> None:
    one, two = Router(), Router()
    asked = [long(random.Random(n).randrange(20)) for n in range(200)]
    assert [one.send(p, n * 0.1)[0] for n, p in enumerate(asked)] == [
        two.send(p, n * 0.1)[0] for n, p in enumerate(asked)
    ]


def test_it_answers_sooner_than_least_in_flight_on_conversations() -> None:
    made = conversations(150, rate=12.0)
    fleet = Fleet(ENGINE, 3)
    ours = summary(replay(made, fleet, lambda: Learning(LeastGrowth(1024))))
    load = summary(replay(made, fleet, LeastInFlight))
    assert ours.ttft_ms["mean"] < load.ttft_ms["mean"]
    assert ours.hit_rate > load.hit_rate


def test_a_backlog_drains_with_time() -> None:
    backlog = Backlog(Speed())
    backlog.add(8000 - REQUEST_TOKENS, 10.0)
    assert backlog.free_at == pytest.approx(11.0)
    backlog.add(8000 - REQUEST_TOKENS, 20.0)
    assert backlog.free_at == pytest.approx(21.0)


def test_a_report_puts_a_backlog_right_in_both_directions() -> None:
    backlog = Backlog(Speed())
    for _ in range(4):
        backlog.add(8000 - REQUEST_TOKENS, 10.0)
    backlog.reported(0, 1000.0, 10.5)  # three are computed already, the fourth perhaps not
    assert backlog.free_at == pytest.approx(11.5)
    backlog.reported(2, 16_000.0, 11.0)  # one of the two is not ours
    assert backlog.free_at == pytest.approx(14.0)


def test_the_end_of_a_response_ends_all_that_came_before_it() -> None:
    backlog = Backlog(Speed())
    works = [backlog.add(8000 - REQUEST_TOKENS, 10.0) for _ in range(4)]
    backlog.ended(works[2], 10.5)
    assert backlog.free_at == pytest.approx(11.5)
    backlog.ended(works[0], 10.6)
    assert backlog.free_at == pytest.approx(11.5)


def test_what_comes_late_is_in_the_last_report_already() -> None:
    backlog = Backlog(Speed())
    backlog.reported(0, 1000.0, 10.0)
    backlog.add(8000.0, 9.5)
    assert backlog.free_at <= 10.0


def test_speed_is_what_engines_say() -> None:
    rule = LeastGrowth()
    rule.set_endpoints(snapshot([0, 0]).addresses)
    address = snapshot([0, 0]).addresses[0]
    for second in range(100):
        report = EngineReport(0, 20_000.0 * second - REQUEST_TOKENS * second, second, 1.0 * second)
        rule.reported(address, report, float(second))
    assert rule._speed.tokens_per_s == pytest.approx(20_000, rel=0.02)


def test_memory_is_bounded() -> None:
    sent = Sent(generation_keys=1000)
    sizes = set()
    for number in range(2000):
        sent.add(long(number, 20), number % 4, capacity=1e12)
        sizes.add(len(sent))
    assert max(sizes) <= 2000


def test_what_is_not_used_is_forgotten_and_what_is_used_is_not() -> None:
    sent = Sent()
    sent.add(long(1, 20), 0, capacity=20 * BLOCK)
    for number in range(2, 20):
        sent.add(long(number, 20), 1, capacity=20 * BLOCK)
        sent.add(long(50, 20), 0, capacity=20 * BLOCK)
    assert sent.match(long(1, 20), 2).covered.tolist() == [0, 0]
    assert sent.match(long(50, 20), 2).covered.tolist() == [20 * BLOCK, 0]
