"""The pool as the picker uses it."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest
import xxhash

from extproc.pool.backlog import REQUEST_TOKENS, UNKNOWN_SPEED
from extproc.pool.health import FIRST_BACK_OFF
from extproc.pool.pool import ADDRESS_SEED, Pool
from extproc.pool.reports import EngineReport
from extproc.routing import build

A, B, C = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"


@pytest.fixture
def pool() -> Pool:
    pool = Pool("llama")
    pool.set_endpoints([A, B, C])
    return pool


def eligible(pool: Pool, now: float) -> set[str]:
    seen = pool.snapshot(now)
    return {address for address, yes in zip(seen.addresses, seen.eligible.tolist(), strict=True) if yes}


def test_a_pool_is_unknown_until_its_endpoints_were_learnt_and_then_may_be_empty() -> None:
    pool = Pool("llama")
    assert not pool.synced
    assert len(pool.snapshot(0.0)) == 0
    pool.set_endpoints([])
    assert pool.synced
    assert len(pool) == len(pool.snapshot(0.0)) == 0


def test_a_snapshot_is_aligned(pool: Pool) -> None:
    pool.take(B, 0.0)
    seen = pool.snapshot(0.0)
    assert seen.addresses == (A, B, C)
    assert seen.hashes.tolist() == [
        xxhash.xxh3_64_intdigest(a.encode(), seed=ADDRESS_SEED) for a in (A, B, C)
    ]
    assert seen.in_flight.tolist() == [0, 1, 0]
    assert seen.eligible.tolist() == [True, True, True]


def test_the_hash_of_an_address_never_changes() -> None:
    # A change would move every prefix once at an upgrade, and part replicas of two versions.
    pool = Pool("llama")
    pool.set_endpoints([A])
    assert pool.snapshot(0.0).hashes.tolist() == [11721554942309606416]


def test_a_snapshot_does_not_change_afterwards(pool: Pool) -> None:
    seen = pool.snapshot(0.0)
    pool.take(A, 0.0)
    pool.missed(B, 0.0)
    pool.set_endpoints([C])
    assert seen.addresses == (A, B, C)
    assert seen.in_flight.tolist() == [0, 0, 0]
    assert seen.eligible.tolist() == [True, True, True]


def test_endpoints_have_one_spelling_and_count_once(pool: Pool) -> None:
    pool.set_endpoints(["[::0001]:80", "[::1]:80", A])
    assert pool.addresses == ("[::1]:80", A)


def test_a_bad_address_is_refused_by_name_and_changes_nothing(pool: Pool) -> None:
    with pytest.raises(ValueError, match=r"engine-7:80"):
        pool.set_endpoints([A, "engine-7:80"])
    assert pool.addresses == (A, B, C)
    unknown = Pool("other")
    with pytest.raises(ValueError, match=r"engine-7:80"):
        unknown.set_endpoints(["engine-7:80"])
    assert not unknown.synced


def test_an_endpoint_that_leaves_and_comes_back_keeps_its_live_count_and_loses_its_suspicion(
    pool: Pool,
) -> None:
    token = pool.take(A, 0.0)
    pool.missed(A, 0.0)
    pool.set_endpoints([B, C])
    assert pool.in_flight() == {A: 1, B: 0, C: 0}
    pool.set_endpoints([C, A])
    assert pool.snapshot(0.1).in_flight.tolist() == [0, 1]
    assert eligible(pool, 0.1) == {A, C}
    token.release(0.2)
    assert pool.in_flight() == {A: 0, C: 0}


def test_a_suspect_is_not_eligible_until_its_back_off_is_over_and_then_for_one_pick(pool: Pool) -> None:
    pool.missed(B, 5.0)
    assert pool.suspects == {B}
    assert eligible(pool, 5.0) == {A, C}
    later = 5.0 + FIRST_BACK_OFF
    assert eligible(pool, later) == {A, B, C}
    pool.take(A, later)
    assert eligible(pool, later) == {A, B, C}
    probe = pool.take(B, later)
    assert eligible(pool, later) == {A, C}
    pool.served(B, later + 0.2)
    probe.release(later + 0.2)
    assert eligible(pool, later + 0.2) == {A, B, C}


def test_exactly_one_of_many_requests_probes_a_half_open_endpoint(pool: Pool) -> None:
    strategy, draw = build("LEAST_OUTSTANDING_REQUESTS"), random.Random(1)
    pool.missed(B, 5.0)
    for _ in range(20):
        pool.take(A, 5.0)
        pool.take(C, 5.0)
    picks = []
    for _ in range(30):
        picks.append(strategy.pick(None, pool.snapshot(7.0), draw).ranked[0])
        pool.take(picks[-1], 7.0)
    assert picks.count(B) == 1


def test_a_down_endpoint_is_first_choice_ever_more_rarely(pool: Pool) -> None:
    strategy, draw = build("LEAST_OUTSTANDING_REQUESTS"), random.Random(1)
    missed_at = []
    for tick in range(10 * 70):
        now = tick / 10
        first = strategy.pick(None, pool.snapshot(now), draw).ranked[0]
        token = pool.take(first, now)
        if first == B:
            missed_at.append(now)
            token.move(A, now)
            pool.missed(B, now, token.taken_at)
            pool.served(A, now)
        token.release(now)
    assert 4 <= len(missed_at) <= 7
    waits = [later - sooner for sooner, later in pairwise(missed_at)]
    assert waits == sorted(waits)
    assert pool.in_flight() == {A: 0, B: 0, C: 0}


def test_only_some_endpoints_may_be_asked_for_in_the_order_of_the_pool(pool: Pool) -> None:
    pool.take(C, 0.0)
    seen = pool.snapshot(0.0, only=[C, "10.0.0.9:80", A, C])
    assert seen.addresses == (A, C)
    assert seen.in_flight.tolist() == [0, 1]
    assert seen.hashes.tolist() == pool.snapshot(0.0).hashes[[0, 2]].tolist()
    assert len(pool.snapshot(0.0, only=[])) == 0


def test_when_only_suspects_may_be_used_they_are_eligible(pool: Pool) -> None:
    pool.missed(A, 0.0)
    assert pool.snapshot(0.1, only={A, B}).eligible.tolist() == [False, True]
    assert pool.snapshot(0.1, only={A}).eligible.tolist() == [True]


def test_giving_the_same_endpoints_again_keeps_what_is_known_of_them(pool: Pool) -> None:
    pool.missed(A, 0.0)
    pool.set_endpoints([A, B, C])
    assert eligible(pool, 0.1) == {B, C}
    pool.set_endpoints([C, B, A])
    assert eligible(pool, 0.1) == {B, C}
    assert pool.addresses == (C, B, A)


def waiting(pool: Pool, now: float) -> dict[str, float]:
    """Tokens that wait by endpoint."""
    seen = pool.snapshot(now)
    assert seen.queues is not None
    return dict(zip(seen.addresses, seen.queues.tokens.tolist(), strict=True))


class TestARequestOnItsWay:
    def test_counts_and_its_prompt_waits_until_it_is_released(self, pool: Pool) -> None:
        request = pool.take(B, 10.0, 8000)
        assert (request.address, request.taken_at) == (B, 10.0)
        assert pool.in_flight() == {A: 0, B: 1, C: 0}
        assert waiting(pool, 10.0) == pytest.approx({A: 0, B: 8000 + REQUEST_TOKENS, C: 0})
        request.release(10.5)
        assert pool.in_flight() == {A: 0, B: 0, C: 0}
        assert waiting(pool, 10.5) == {A: 0, B: 0, C: 0}

    def test_that_has_ended_was_computed_with_all_before_it_and_one_given_up_was_not(
        self, pool: Pool
    ) -> None:
        first, second, third = (pool.take(A, 10.0, 8000) for _ in range(3))
        second.release(10.0)
        assert waiting(pool, 10.0)[A] == pytest.approx(8000 + REQUEST_TOKENS)
        first.release(10.0)
        fourth = pool.take(A, 10.0, 8000)
        fourth.release(10.0, computed=False)
        assert waiting(pool, 10.0)[A] == pytest.approx(8000 + REQUEST_TOKENS)
        third.release(10.0, computed=False)
        assert waiting(pool, 10.0)[A] == pytest.approx(0, abs=1e-6)

    def test_is_released_once(self, pool: Pool) -> None:
        request, other = pool.take(A, 10.0, 8000), pool.take(A, 10.0, 8000)
        for computed in (False, True, True):
            request.release(10.0, computed)
        assert pool.in_flight()[A] == 1
        assert waiting(pool, 10.0)[A] == pytest.approx(8000 + REQUEST_TOKENS)
        request.move(B, 10.0)
        assert pool.in_flight() == {A: 1, B: 0, C: 0}
        other.release(10.0)

    def test_moves_with_its_prompt_to_the_endpoint_that_serves(self, pool: Pool) -> None:
        request = pool.take(A, 10.0, 8000)
        request.move(B, 10.0)
        assert (request.address, request.taken_at) == (B, 10.0)
        assert pool.in_flight() == {A: 0, B: 1, C: 0}
        assert waiting(pool, 10.0) == pytest.approx({A: 0, B: 8000 + REQUEST_TOKENS, C: 0}, abs=1e-6)
        request.move(B, 10.0)
        assert waiting(pool, 10.0)[B] == pytest.approx(8000 + REQUEST_TOKENS)
        request.release(10.0)
        assert waiting(pool, 10.0) == pytest.approx({A: 0, B: 0, C: 0}, abs=1e-6)
        assert pool.in_flight() == {A: 0, B: 0, C: 0}

    def test_served_by_a_stranger_counts_there_while_it_lasts(self, pool: Pool) -> None:
        request = pool.take(A, 10.0, 8000)
        request.move("10.9.9.9:80", 10.0)
        assert pool.in_flight() == {A: 0, B: 0, C: 0, "10.9.9.9:80": 1}
        request.release(11.0)
        assert pool.in_flight() == {A: 0, B: 0, C: 0}

    def test_outlives_its_endpoint_and_says_nothing_of_one_that_came_in_its_place(self, pool: Pool) -> None:
        old = pool.take(A, 10.0, 8000)
        pool.set_endpoints([B])
        pool.set_endpoints([A, B])
        new = pool.take(A, 10.0, 4000)
        old.release(10.0)
        assert waiting(pool, 10.0)[A] == pytest.approx(4000 + REQUEST_TOKENS)
        new.release(10.0)
        assert pool.in_flight() == {A: 0, B: 0}


class TestWhatWaits:
    def test_is_computed_as_time_goes_by(self, pool: Pool) -> None:
        pool.take(A, 10.0, 2 * UNKNOWN_SPEED - REQUEST_TOKENS)
        assert waiting(pool, 11.0)[A] == pytest.approx(UNKNOWN_SPEED)
        assert waiting(pool, 12.5)[A] == 0

    def test_is_what_engines_report_where_they_do(self, pool: Pool) -> None:
        for _ in range(5):
            pool.take(A, 10.0, 8000)
        pool.report(A, EngineReport(running=4, waiting=1), 10.0)
        # One waits, one more may be half computed.
        assert waiting(pool, 10.0)[A] == pytest.approx(2 * (8000 + REQUEST_TOKENS))

    def test_of_part_of_the_pool_is_that_of_its_endpoints_in_order(self, pool: Pool) -> None:
        pool.take(B, 10.0, 1000)
        pool.take(C, 10.0, 5000)
        seen = pool.snapshot(10.0, only=[C, B])
        assert seen.queues is not None
        assert seen.queues.tokens.tolist() == pytest.approx([1000 + REQUEST_TOKENS, 5000 + REQUEST_TOKENS])
        assert seen.queues.typical == pytest.approx(3000 + REQUEST_TOKENS)
        assert seen.members == (A, B, C)

    def test_what_another_replica_sent_waits_too_and_is_not_counted_in_flight(self, pool: Pool) -> None:
        pool.heard(B, 8000, 9.8)
        pool.heard("10.9.9.9:80", 8000, 9.8)
        assert waiting(pool, 9.8) == pytest.approx({A: 0, B: 8000 + REQUEST_TOKENS, C: 0})
        assert pool.in_flight() == {A: 0, B: 0, C: 0}

    def test_how_much_of_the_traffic_is_known_follows_from_reports_and_from_what_was_heard(
        self, pool: Pool
    ) -> None:
        for _ in range(10):
            pool.take(A, 1.0)
        for second in range(60):
            pool.report(A, EngineReport(15, 5), 1.0 + second)
        seen = pool.snapshot(60.0)
        assert seen.queues is not None
        assert seen.queues.known_share == pytest.approx(0.5)
        pool.heard(B, 1000, 60.0)
        seen = pool.snapshot(60.5)
        assert seen.queues is not None
        assert seen.queues.known_share == 1.0
        assert seen.queues.unseen > 0


def test_a_snapshot_s_queues_and_shares_do_not_change_afterwards(pool: Pool) -> None:
    pool.set_endpoints([A, B, C, "10.0.0.4:80"], 9.0)
    seen = pool.snapshot(10.0)
    assert seen.queues is not None
    assert seen.ease is not None
    before = seen.queues.tokens.tolist(), seen.ease.tolist()
    pool.take(A, 10.0, 8000)
    pool.snapshot(20.0)
    assert (seen.queues.tokens.tolist(), seen.ease.tolist()) == before
