"""What the transfer engine decides by, without IO."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprep.transfer.journal import HASH_HEX, Claim, parse
from cacheprep.transfer.pace import LONGEST_ASKED_S, LONGEST_RETRY_S, Bandwidth, Pulse, retry_delay
from cacheprep.transfer.ranges import Range, cut, gaps
from cacheprep.transfer.rate import WINDOW_S, Rate

sizes = st.integers(0, 5000)
ranges = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 5000)).map(lambda pair: Range(*sorted(pair))), max_size=12
)


@given(sizes, ranges)
def test_ranges_and_gaps_together_are_the_file_and_gaps_are_not_in_ranges(
    size: int, whole: list[Range]
) -> None:
    covered = {at for start, end in whole for at in range(start, min(end, size))}
    found = gaps(size, whole)
    missing = [at for start, end in found for at in range(start, end)]
    assert missing == sorted(set(range(size)) - covered)


@given(sizes, ranges, st.integers(1, 999))
def test_cutting_loses_no_byte_and_keeps_to_the_length(size: int, whole: list[Range], length: int) -> None:
    found = gaps(size, whole)
    pieces = list(cut(found, length))
    assert [at for start, end in pieces for at in range(start, end)] == [
        at for start, end in found for at in range(start, end)
    ]
    assert all(0 < piece.length <= length for piece in pieces)
    # A run that resumes cuts where the first one did.
    assert all(end % length == 0 or end in {gap.end for gap in found} for _, end in pieces)


HASH = "0" * HASH_HEX


@given(st.text(max_size=300))
def test_a_journal_of_any_text_is_read_and_claims_only_what_lies_in_a_file(text: str) -> None:
    for index, claims in parse(text, [10, 20]).items():
        assert all(0 <= start < end <= [10, 20][index] for (start, end), _ in claims)


def test_a_line_that_a_crash_cut_is_not_there() -> None:
    text = f"range 0 0 5 {HASH}\nrange 1 0 7 {HASH[:5]}"
    assert parse(text, [10, 20]) == {0: [Claim(Range(0, 5), HASH)]}


def test_what_was_dropped_no_longer_counts_and_what_came_after_does() -> None:
    text = f"range 0 0 5 {HASH}\ndrop 0\nrange 0 5 9 {HASH}\n"
    assert parse(text, [10]) == {0: [Claim(Range(5, 9), HASH)]}


@pytest.mark.parametrize(
    "line", ["range 2 0 5 " + HASH, "range 0 5 5 " + HASH, "range 0 0 11 " + HASH, "range 0 -1 5 " + HASH]
)
def test_a_claim_outside_of_its_file_is_not_there(line: str) -> None:
    assert parse(line + "\n", [10, 20]) == {}


@given(st.integers(1, 1000), st.floats(0, 0.999))
def test_a_retry_waits_longer_each_time_and_never_too_long(failures: int, chance: float) -> None:
    assert 0 < retry_delay(failures, None, chance) <= LONGEST_RETRY_S
    assert retry_delay(failures + 1, None, 0.0) >= retry_delay(failures, None, 0.0)


def test_a_source_that_asks_for_time_gets_it_within_reason() -> None:
    assert retry_delay(1, 7.0, 0.5) == 7.0
    assert retry_delay(1, 86_400.0, 0.5) == LONGEST_ASKED_S


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=200), st.floats(100, 1e6))
def test_a_bandwidth_limit_holds_over_any_run_of_chunks(chunks: list[int], rate: float) -> None:
    limit, now = Bandwidth(rate), 0.0
    for amount in chunks:
        now += limit.took(amount, now)
    assert sum(chunks) <= rate * (now + 0.25) + 1e-6


def test_a_connection_that_brings_nothing_while_waited_for_is_stalled() -> None:
    pulse = Pulse(window_s=30, least_bytes_per_s=100)
    pulse.waiting(0)
    assert not pulse.stalled(29)
    assert pulse.stalled(30)


def test_one_that_drips_is_stalled_too() -> None:
    pulse = Pulse(window_s=30, least_bytes_per_s=100)
    for second in range(30):
        pulse.waiting(second)
        pulse.got(1, second + 1)
    assert pulse.stalled(30)


def test_one_that_is_not_waited_for_is_not_stalled_however_long_it_takes() -> None:
    pulse = Pulse(window_s=30, least_bytes_per_s=100)
    pulse.waiting(0)
    pulse.got(1, 1)
    assert not pulse.stalled(10_000)


def test_one_that_brings_enough_begins_anew() -> None:
    pulse = Pulse(window_s=30, least_bytes_per_s=100)
    pulse.waiting(0)
    pulse.got(3000, 29)
    pulse.waiting(29)
    assert not pulse.stalled(58)
    assert pulse.stalled(59)


def test_a_rate_is_that_of_the_last_seconds_and_not_of_the_whole_fetch() -> None:
    rate = Rate()
    assert rate.over(0, 100.0) == 0.0
    assert [rate.over(1000 * at, 100.0 + at) for at in range(1, 60)] == [1000.0] * 59
    stalled = [rate.over(59_000, 160.0 + at) for at in range(1, 12)]
    assert stalled == sorted(stalled, reverse=True)
    assert stalled[-1] == 0.0


def test_a_rate_is_measured_anew_once_bytes_were_thrown_away() -> None:
    rate = Rate()
    rate.over(0, 0.0)
    rate.over(10_000, 1.0)
    assert rate.over(2_000, 2.0) == 0.0
    assert rate.over(5_000, 3.0) == 3000.0


def test_a_rate_keeps_no_more_counts_than_its_window_has() -> None:
    rate = Rate()
    for at in range(10_000):
        rate.over(at, float(at))
    assert len(rate._counts) <= WINDOW_S + 2
