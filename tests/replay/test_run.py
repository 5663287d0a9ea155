"""A replay: who gets what, in virtual time."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from extproc.pool.reports import EngineReport
from extproc.pool.snapshot import Snapshot
from extproc.replay.arrival import Arrival, Trace
from extproc.replay.events import Change, adding, removing
from extproc.replay.figures import summary
from extproc.replay.peers.load import LeastInFlight, RoundRobin
from extproc.replay.policies import parse
from extproc.replay.policy import Policy
from extproc.replay.run import Fleet, Outcome, replay
from tests.replay.traffic import ENGINE, conversations, request, trace


class Listener(RoundRobin):
    """Notes all it is told."""

    reads_reports = True
    hears_picks = True

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Snapshot] = []
        self.ends: list[tuple[str, float]] = []
        self.reports: list[tuple[str, EngineReport, float]] = []
        self.others: list[tuple[Arrival, str, float]] = []

    def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
        self.seen.append(endpoints)
        return super().pick(request, endpoints, now, draw)

    def ended(self, request: Arrival, address: str, now: float) -> None:
        self.ends.append((address, now))

    def reported(self, address: str, report: EngineReport, now: float) -> None:
        self.reports.append((address, report, now))

    def heard(self, picks: list[tuple[Arrival, str, float]], now: float) -> None:
        self.others += picks


def run(name: str, fleet: Fleet, made: Trace | None = None) -> Outcome:
    return replay(conversations(60) if made is None else made, fleet, parse(name)[0].make)


def test_a_prefix_seen_before_is_cached_and_its_first_token_comes_sooner() -> None:
    found = replay(trace([request(0.0, range(50)), request(10.0, range(50))]), Fleet(ENGINE, 1), RoundRobin)
    assert found.cached.tolist() == [0, 3200]
    assert found.ttft[0] == pytest.approx(0.02 + 3205 / 8000)
    assert found.ttft[1] == pytest.approx(0.02 + 5 / 8000)
    assert found.total[1] == pytest.approx(found.ttft[1] + 19 * 0.025)


def test_equal_arguments_give_equal_outcomes() -> None:
    fleet = Fleet(ENGINE, 4, replicas=3)
    for name in ("PREFIX_AWARE", "RANDOM", "radix-tree", "scored"):
        one, two = run(name, fleet), run(name, fleet)
        assert np.array_equal(one.engine, two.engine)
        assert np.array_equal(one.ttft, two.ttft)


def test_the_strategy_that_serves_finds_more_than_one_that_looks_at_load() -> None:
    fleet = Fleet(ENGINE, 4)
    prefix, load = (summary(run(name, fleet)) for name in ("PREFIX_AWARE", "LEAST_OUTSTANDING_REQUESTS"))
    assert prefix.hit_rate > load.hit_rate + 0.1
    assert prefix.refused == load.refused == 0


def test_every_request_is_counted_while_it_runs_and_released_once() -> None:
    policy = Listener()
    made = conversations(30)
    found = replay(made, Fleet(ENGINE, 3), lambda: policy)
    assert len(policy.ends) == len(made.arrivals)
    assert all((seen.in_flight >= 0).all() for seen in policy.seen)
    assert max(int(seen.in_flight.sum()) for seen in policy.seen) > 1
    ended = sorted((found.at + found.total).tolist())
    assert [end for _, end in sorted(policy.ends, key=lambda pair: pair[1])] == pytest.approx(ended)


def test_a_replica_knows_its_own_requests_and_reads_of_the_others_each_second() -> None:
    counted: list[tuple[float, int]] = []

    class Reading(RoundRobin):
        reads_reports = True

        def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
            counted.append((now, int(endpoints.in_flight.sum())))
            return super().pick(request, endpoints, now, draw)

    times = [0.1] * 20 + [1.5] * 5
    arrivals = [request(at, [], output_tokens=400) for at in times]
    replay(trace(arrivals), Fleet(ENGINE, 2, replicas=8), Reading)
    assert all(count < 10 for at, count in counted if at < 1.0)
    assert all(count >= 20 for at, count in counted if at >= 1.0)


def test_without_reports_a_replica_never_learns_of_the_others() -> None:
    seen: list[int] = []

    class Own(LeastInFlight):
        def pick(self, request: Arrival, endpoints: Snapshot, now: float, draw: random.Random) -> str:
            seen.append(int(endpoints.in_flight.sum()))
            return super().pick(request, endpoints, now, draw)

    arrivals = [request(at * 0.01, [], output_tokens=4000) for at in range(40)] + [request(5.0, [])]
    replay(trace(arrivals), Fleet(ENGINE, 2, replicas=8), Own)
    assert seen[-1] < 20


def test_shared_picks_reach_every_other_replica_and_not_the_one_that_picked() -> None:
    listeners: list[Listener] = []

    def make() -> Policy:
        listeners.append(Listener())
        return listeners[-1]

    made = conversations(10)
    replay(made, Fleet(ENGINE, 2, replicas=3, shared_picks=True), make)
    told = made.arrivals[-1].at // 1
    shared = sum(1 for arrival in made.arrivals if arrival.at < told)
    assert sum(len(one.others) for one in listeners) == 2 * shared
    for one in listeners:
        assert len(one.others) + len([end for end in one.ends if end]) <= len(made.arrivals)


def test_an_engine_that_joins_is_empty_and_one_that_leaves_gets_nothing_more() -> None:
    made = conversations(80)
    middle = made.arrivals[-1].at / 2
    changes = [Change(middle, add=1), Change(middle + 5, remove="engine-2")]
    found = replay(made, Fleet(ENGINE, 3, changes=changes), RoundRobin)
    joined = found.at[found.engine == 3]
    left = found.at[found.engine == 1]
    assert joined.min() >= middle
    assert left.max() < middle + 5
    assert not np.isnan(found.ttft).any()
    first = int(np.flatnonzero(found.engine == 3)[0])
    assert found.cached[first] == 0
    assert [engine.name for engine in found.engines if engine.joined] == ["engine-4"]


@pytest.mark.parametrize(
    "name",
    ["RANDOM", "LEAST_OUTSTANDING_REQUESTS", "PREFIX_AWARE", "PREFIX_AWARE:prefixLength=65536"],
)
def test_an_engine_that_joins_is_eased_in_under_the_policies_of_ours(name: str) -> None:
    made = conversations(400, rate=20.0)
    joins = made.arrivals[-1].at / 3

    def served(window: int) -> tuple[int, int]:
        """Requests that the newcomer served in its first fifteen seconds, and from thirty on."""
        setting = f"{',' if ':' in name else ':'}slowStart={window}"
        found = run(name + setting, Fleet(ENGINE, 3, changes=[Change(joins, add=1)]), made)
        since = found.at[found.engine == 3] - joins
        return int(np.count_nonzero(since < 15.0)), int(np.count_nonzero(since >= 30.0))

    slow, at_once = served(30), served(0)
    assert slow[0] < 0.75 * at_once[0]
    assert slow[1] > 0.75 * at_once[1] > 0


def test_engines_that_are_there_from_the_start_are_not_eased_in() -> None:
    made = conversations(40)
    slow, at_once = (run(f"PREFIX_AWARE:slowStart={window}", Fleet(ENGINE, 4), made) for window in (3600, 0))
    assert np.array_equal(slow.engine, at_once.engine)


def test_an_engine_that_is_not_there_cannot_leave() -> None:
    with pytest.raises(ValueError, match="engine-9 cannot leave at 1 s"):
        replay(conversations(5), Fleet(ENGINE, 2, changes=[Change(1.0, remove="engine-9")]), RoundRobin)


def test_with_no_engine_left_requests_are_refused_and_counted() -> None:
    made = conversations(20)
    found = replay(made, Fleet(ENGINE, 1, changes=[Change(10.0, remove="engine-1")]), RoundRobin)
    assert found.refused == sum(1 for arrival in made.arrivals if arrival.at >= 10.0)
    assert summary(found).refused == found.refused


def test_a_prompt_that_no_cache_can_hold_is_refused_and_counted() -> None:
    found = replay(trace([request(0.0, range(5000)), request(1.0, [1])]), Fleet(ENGINE, 2), RoundRobin)
    assert found.refused == 1
    assert found.engine.tolist()[0] == -1


def test_twice_the_load_is_half_the_time() -> None:
    made = conversations(10)
    found = replay(made, Fleet(ENGINE, 2, time_scale=0.5), RoundRobin)
    assert found.at[-1] == pytest.approx(made.arrivals[-1].at / 2)


def test_progress_adds_up_to_the_trace() -> None:
    made = conversations(80)
    done: list[int] = []
    replay(made, Fleet(ENGINE, 2), RoundRobin, done.append)
    assert sum(done) == len(made.arrivals)


@pytest.mark.parametrize(
    ("text", "at"), [("2@600s", 600.0), ("2@10m", 600.0), ("2@0.5h", 1800.0), ("2@7", 7.0)]
)
def test_events_are_written_as_a_number_and_a_time(text: str, at: float) -> None:
    assert adding(text) == Change(at, add=2)


@pytest.mark.parametrize("text", ["0@600s", "two@1s", "2@", "2", "@5s", "2@-1s", "1001@5s"])
def test_an_event_that_is_no_event_says_how_one_looks(text: str) -> None:
    with pytest.raises(ValueError, match="like 2@600s"):
        adding(text)


def test_an_engine_leaves_by_its_name() -> None:
    assert removing("engine-3@900s") == Change(900.0, remove="engine-3")
    with pytest.raises(ValueError, match="like engine-3@900s"):
        removing("3@900s")


@pytest.mark.parametrize("values", [{"engines": 0}, {"replicas": 101}, {"time_scale": 0.0}])
def test_an_impossible_fleet_is_refused_with_its_range(values: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"from 1 to|above 0"):
        Fleet(ENGINE, **values)


def test_a_prefix_length_is_looked_at_and_nothing_beyond() -> None:
    """Blocks of 256 bytes: 1,024 bytes are four of them."""
    alike = [request(float(at), [1, 2, 3, 4, 100 + at]) for at in range(40)]
    fleet = Fleet(ENGINE, 4)
    short, long = (
        replay(trace(alike), fleet, parse(f"PREFIX_AWARE:prefixLength={length}")[0].make)
        for length in (1024, 1280)
    )
    assert len(set(short.engine.tolist())) == 1
    assert len(set(long.engine.tolist())) == 4
