"""The queue between requests and batches."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from extproc.picker import Picked
from extproc.prefix import BlockKeys
from extproc.sharing.outbox import MAX_WAITING_KEYS, Outbox
from tests.sharing.traffic import pick


def of(number: int, keys: int) -> Picked:
    """A pick with objects of its own, as each prompt has."""
    base = (number + 1) << 32
    return pick(BlockKeys([base + k for k in range(keys)], [1000 + base + k for k in range(keys)]))


def test_picks_leave_in_the_order_in_which_they_came() -> None:
    outbox = Outbox()
    told = [of(number, 3) for number in range(5)]
    for one in told:
        outbox.tell(one)
    waiting, dropped = outbox.drain()
    assert (list(waiting), dropped) == (told, 0)
    assert (list(outbox.drain()[0]), len(outbox)) == ([], 0)


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(1, 100))
def test_the_newest_stay_within_the_limit_of_keys_and_the_others_are_counted(
    lengths: list[int], limit: int
) -> None:
    outbox = Outbox(limit)
    told = [of(number, keys) for number, keys in enumerate(lengths)]
    for one in told:
        outbox.tell(one)
    waiting, dropped = outbox.drain()
    keyed = [one for one in told if one.keys.keys]
    assert list(waiting) == keyed[len(keyed) - len(waiting) :]
    assert len(waiting) + dropped == len(keyed)
    held = sum(len(one.keys.keys) for one in waiting)
    assert held <= limit
    if dropped:
        assert held + len(keyed[dropped - 1].keys.keys) > limit


def test_a_prompt_without_block_keys_tells_nothing() -> None:
    outbox = Outbox()
    outbox.tell(of(0, 0))
    assert len(outbox) == 0


def test_memory_has_a_limit_however_many_picks_come() -> None:
    outbox = Outbox(MAX_WAITING_KEYS // 16)

    def held_after(picks: int) -> int:
        for number in range(picks):
            outbox.tell(of(number, 40))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        full = held_after(MAX_WAITING_KEYS // 16 // 40 + 1)
        later = held_after(2_000)
    finally:
        tracemalloc.stop()
    assert later < 1.02 * full
    assert full < 100 * MAX_WAITING_KEYS / 16
