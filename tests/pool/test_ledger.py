"""The ledger: every request counted once while it lasts, on the endpoint that serves it."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from extproc.pool.ledger import Ledger, Token

A, B, C = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"
UNKNOWN = "10.9.9.9:80"


def ledger_of(*addresses: str) -> Ledger:
    ledger = Ledger()
    ledger.set_addresses(addresses)
    return ledger


def test_a_request_counts_from_take_to_release() -> None:
    ledger = ledger_of(A, B)
    token = ledger.take(A)
    assert token.held
    assert ledger.counts() == {A: 1, B: 0}
    token.release()
    assert not token.held
    assert ledger.counts() == {A: 0, B: 0}


def test_releasing_again_changes_nothing() -> None:
    ledger = ledger_of(A)
    first, second = ledger.take(A), ledger.take(A)
    for _ in range(3):
        first.release()
    assert ledger.counts() == {A: 1}
    second.release()
    assert ledger.counts() == {A: 0}


def test_a_request_served_elsewhere_counts_there() -> None:
    ledger = ledger_of(A, B)
    token = ledger.take(A)
    token.move(B)
    assert ledger.counts() == {A: 0, B: 1}
    assert token.address == B
    token.move(B)
    assert ledger.counts() == {A: 0, B: 1}
    token.release()
    assert ledger.counts() == {A: 0, B: 0}


def test_moving_after_release_changes_nothing() -> None:
    ledger = ledger_of(A, B)
    token = ledger.take(A)
    token.release()
    token.move(B)
    token.release()
    assert ledger.counts() == {A: 0, B: 0}


def test_an_endpoint_that_is_not_listed_is_counted_while_it_serves_and_then_forgotten() -> None:
    ledger = ledger_of(A)
    token = ledger.take(A)
    token.move(UNKNOWN)
    assert ledger.counts() == {A: 0, UNKNOWN: 1}
    token.release()
    assert ledger.counts() == {A: 0}


def test_any_number_of_unlisted_endpoints_one_after_the_other_grows_nothing() -> None:
    ledger = Ledger(slots=4)
    ledger.set_addresses([A, B])
    for number in range(1000):
        token = ledger.take(A)
        token.move(f"10.1.{number // 250}.{number % 250}:80")
        token.release()
    assert ledger.width == 4


def test_an_endpoint_that_leaves_and_comes_back_keeps_its_live_count() -> None:
    ledger = ledger_of(A, B)
    token = ledger.take(A)
    ledger.set_addresses([B, C])
    assert ledger.counts() == {A: 1, B: 0, C: 0}
    slots = ledger.set_addresses([A, B])
    assert ledger.in_flight(slots).tolist() == [1, 0]
    token.release()
    assert ledger.counts() == {A: 0, B: 0}


def test_a_slot_in_use_is_not_given_to_another() -> None:
    ledger = ledger_of(A)
    old = ledger.take(A)
    slots = ledger.set_addresses([B])
    assert ledger.in_flight(slots).tolist() == [0]
    old.release()
    assert ledger.in_flight(slots).tolist() == [0]
    assert ledger.counts() == {B: 0}


def test_pools_that_follow_one_another_reuse_the_slots() -> None:
    ledger = Ledger(slots=16)
    for generation in range(200):
        ledger.set_addresses([f"10.{generation}.0.{number}:80" for number in range(8)])
    assert ledger.width == 16


@pytest.mark.parametrize("endpoints", [15, 16, 17, 1000])
def test_counts_survive_growing(endpoints: int) -> None:
    ledger = ledger_of(A)
    tokens = [ledger.take(A) for _ in range(3)]
    many = [f"10.2.{number // 250}.{number % 250}:80" for number in range(endpoints)]
    slots = ledger.set_addresses([*many, A])
    assert len(set(slots.tolist())) == endpoints + 1
    assert ledger.in_flight(slots).tolist() == [0] * endpoints + [3]
    last = ledger.take(many[-1])
    assert ledger.picks(slots).tolist() == [0] * (endpoints - 1) + [1, 3]
    for token in [*tokens, last]:
        token.release()
    assert ledger.in_flight(slots).sum() == 0


ADDRESSES = [f"10.0.0.{number}:80" for number in range(1, 7)]
some_address = st.sampled_from(ADDRESSES)


class AnyHistory(RuleBasedStateMachine):
    """Takes, moves, releases and changes of the pool in any order, beside a plain count of live requests."""

    @initialize()
    def start(self) -> None:
        self.ledger = Ledger(slots=2)
        self.listed: list[str] = []
        self.slots = self.ledger.set_addresses([])
        self.tokens: list[Token] = []
        self.where: dict[int, str] = {}

    @rule(addresses=st.lists(some_address, unique=True))
    def change_the_pool(self, addresses: list[str]) -> None:
        self.listed = addresses
        self.slots = self.ledger.set_addresses(addresses)

    @rule(address=some_address)
    def take(self, address: str) -> None:
        self.where[len(self.tokens)] = address
        self.tokens.append(self.ledger.take(address))

    @rule(number=st.integers(0, 30), address=some_address)
    def move(self, number: int, address: str) -> None:
        if number < len(self.tokens):
            self.tokens[number].move(address)
            if number in self.where:
                self.where[number] = address

    @rule(number=st.integers(0, 30))
    def release(self, number: int) -> None:
        if number < len(self.tokens):
            self.tokens[number].release()
            self.where.pop(number, None)

    @invariant()
    def counts_are_those_of_the_live_requests(self) -> None:
        live = Counter(self.where.values())
        assert self.ledger.counts() == {
            **dict.fromkeys(self.listed, 0),
            **{address: count for address, count in live.items() if count},
        }
        assert self.ledger.in_flight(self.slots).tolist() == [live[address] for address in self.listed]
        everywhere = self.ledger.in_flight(np.arange(self.ledger.width))
        assert everywhere.min() >= 0
        assert everywhere.sum() == len(self.where)
        assert self.ledger.width <= 16


AnyHistory.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestAnyHistory = AnyHistory.TestCase
