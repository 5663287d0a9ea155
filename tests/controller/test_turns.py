"""Whose turn it is, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cacheprep.controller.turns import LEAST_SECONDS, LONGEST_BACK_OFF, RESYNC_SECONDS, SHARE, Turns


def test_who_is_asked_for_is_next_at_once() -> None:
    turns: Turns[str] = Turns()
    turns.ask("llama", 10.0)
    assert turns.take(9.9) is None
    assert turns.take(10.0) == "llama"
    assert turns.take(10.0) is None


def test_who_is_asked_for_again_and_again_has_one_turn() -> None:
    turns: Turns[str] = Turns()
    for _ in range(100):
        turns.ask("llama", 1.0)
    assert turns.take(1.0) == "llama"
    assert turns.take(1.0) is None


def test_changes_that_pour_in_cannot_keep_a_cpu_busy() -> None:
    turns: Turns[str] = Turns()
    now, busy = 0.0, 0.0
    while now < 100:
        turns.ask("llama", now)
        at = turns.next_at()
        assert at is not None
        now = max(now, at)
        assert turns.take(now) == "llama"
        now, busy = now + 0.5, busy + 0.5
        turns.looked("llama", 0.5, now, None)
    assert busy / now < 1.2 / SHARE


def test_a_change_is_looked_at_soon_after_a_short_look() -> None:
    turns: Turns[str] = Turns()
    turns.looked("llama", 0.001, 100.0, None)
    turns.ask("llama", 100.1)
    assert turns.next_at() == 100.0 + LEAST_SECONDS


def test_nobody_is_forgotten_though_nothing_is_heard_and_a_plan_may_ask_for_less() -> None:
    turns: Turns[str] = Turns()
    turns.looked("llama", 0.001, 100.0, None)
    assert turns.next_at() == 100.0 + RESYNC_SECONDS
    turns.looked("llama", 0.001, 100.0, 130.0)
    assert turns.next_at() == 130.0


def test_after_failures_it_waits_longer_each_time_whatever_changes() -> None:
    turns: Turns[str] = Turns()
    waits = [turns.failed("llama", 0.0) for _ in range(10)]
    assert waits[:4] == [1.0, 2.0, 4.0, 8.0]
    assert waits[-1] == LONGEST_BACK_OFF
    turns.ask("llama", 1.0)
    assert turns.next_at() == LONGEST_BACK_OFF
    turns.looked("llama", 0.0, 60.0, None)
    assert turns.failed("llama", 100.0) == 1.0


def test_who_is_gone_has_no_turn() -> None:
    turns: Turns[str] = Turns()
    turns.ask("llama", 1.0)
    turns.forget("llama")
    assert turns.next_at() is None


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 100)), max_size=30))
def test_turns_come_in_the_order_of_their_times(asked: list[tuple[str, float]]) -> None:
    turns: Turns[str] = Turns()
    first: dict[str, float] = {}
    for who, at in asked:
        turns.ask(who, at)
        first[who] = min(first.get(who, at), at)
    taken = []
    while (taking := turns.take(100.0)) is not None:
        taken.append(taking)
    assert [first[who] for who in taken] == sorted(first.values())
