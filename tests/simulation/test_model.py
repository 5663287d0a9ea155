"""The engine model: conservation, limits, timing and hit accounting."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.simulation.model import Engine, Event, Kind, Request, TooLargeError
from extproc.simulation.presets import PRESETS, EngineSpec

PLAIN = EngineSpec(
    prefill_tokens_per_s=1000,
    prefill_overhead_s=0.1,
    step_s=0.01,
    step_per_request_s=0.001,
    blocks=1000,
    max_num_seqs=8,
    chunk_tokens=0,
)


def _run_out(engine: Engine) -> list[Event]:
    events = []
    while (due := engine.next_event()) != inf:
        events += engine.advance(due)
    return events


def _times(events: list[Event], kind: Kind) -> dict[object, float]:
    return {event.id: event.time for event in events if event.kind is kind}


# timing


def test_a_lone_request_takes_overhead_prefill_and_one_step_per_further_token() -> None:
    engine = Engine(PLAIN)
    engine.submit(Request("a", [], 500, 11), 10.0)
    events = _run_out(engine)
    assert [event.kind for event in events] == [Kind.STARTED, Kind.FIRST_TOKEN, Kind.FINISHED]
    assert [event.time for event in events] == pytest.approx([10.0, 10.6, 10.6 + 10 * 0.011])


def test_one_prefill_runs_at_a_time_in_order_of_arrival() -> None:
    engine = Engine(PLAIN)
    for name in "abc":
        engine.submit(Request(name, [], 400, 1), 0.0)
    assert (engine.running, engine.waiting) == (1, 2)
    first = _times(_run_out(engine), Kind.FIRST_TOKEN)
    assert first == pytest.approx({"a": 0.5, "b": 1.0, "c": 1.5})


def test_decode_is_slower_per_token_the_more_requests_decode() -> None:
    def duration(others: int) -> float:
        engine = Engine(replace(PLAIN, prefill_overhead_s=0))
        for other in range(others):
            engine.submit(Request(other, [], 1, 1_000), 0.0)
        engine.submit(Request("a", [], 1, 101), 1.0)
        engine.advance(1.5)  # past every prefill
        events = _run_out(engine)
        return _times(events, Kind.FINISHED)["a"]

    alone, among_seven = duration(0), duration(7)
    assert alone == pytest.approx(1.001 + 100 * 0.011)
    assert among_seven == pytest.approx(1.001 + 100 * 0.018)


def test_chunked_prefill_and_decode_slow_each_other_by_sharing_steps() -> None:
    engine = Engine(replace(PLAIN, chunk_tokens=100, prefill_overhead_s=0))
    engine.submit(Request("decoding", [], 1, 1001), 0.0)
    engine.advance(0.5)
    engine.submit(Request("long", [], 1000, 1), 0.5)
    # Ten steps of 100 tokens, each 0.1 s of prefill and 0.011 s of decode.
    assert _times(_run_out(engine), Kind.FIRST_TOKEN)["long"] == pytest.approx(0.5 + 10 * 0.111)


def test_a_short_prefill_is_one_step_in_which_every_decoding_request_gets_a_token() -> None:
    engine = Engine(replace(PLAIN, chunk_tokens=100), stream_interval=1)
    engine.submit(Request("decoding", [], 1, 1001), 0.0)
    engine.advance(0.5)
    at = engine.next_event()  # the next token
    engine.advance(at)
    engine.submit(Request("short", [], 50, 1), at)
    events = _run_out(engine)
    assert _times(events, Kind.FIRST_TOKEN)["short"] == pytest.approx(at + 0.1 + 0.05 + 0.011)
    tokens = [event for event in events if event.kind is Kind.TOKENS]
    assert tokens[0].time == pytest.approx(at + 0.161)


def test_without_chunks_prefill_and_decode_do_not_slow_each_other() -> None:
    engine = Engine(PLAIN)
    engine.submit(Request("decoding", [], 1, 1001), 0.0)
    engine.advance(0.5)
    engine.submit(Request("long", [], 900, 1), 0.5)
    assert _times(_run_out(engine), Kind.FIRST_TOKEN)["long"] == pytest.approx(1.5)


def test_a_full_batch_makes_the_next_request_wait_for_one_to_finish() -> None:
    engine = Engine(replace(PLAIN, max_num_seqs=1))
    engine.submit(Request("a", [], 100, 101), 0.0)
    engine.submit(Request("b", [], 100, 1), 0.0)
    events = _run_out(engine)
    assert _times(events, Kind.STARTED)["b"] == _times(events, Kind.FINISHED)["a"] == pytest.approx(0.2 + 1.1)


def test_a_head_without_room_in_the_cache_waits_and_those_behind_it_wait_too() -> None:
    engine = Engine(replace(PLAIN, blocks=10))
    engine.submit(Request("a", [], 16 * 6, 1), 0.0)  # 6 blocks
    engine.submit(Request("big", [], 16 * 6, 1), 0.0)
    engine.submit(Request("small", [], 16, 1), 0.0)
    events = _run_out(engine)
    started = _times(events, Kind.STARTED)
    assert started["a"] < started["big"] < started["small"]


def test_tokens_arrive_at_the_stream_interval_and_the_first_at_once() -> None:
    engine = Engine(PLAIN, stream_interval=4)
    engine.submit(Request("a", [], 16, 10), 0.0)
    assert [(event.kind, event.tokens) for event in _run_out(engine)] == [
        (Kind.STARTED, 0),
        (Kind.FIRST_TOKEN, 1),
        (Kind.TOKENS, 5),
        (Kind.TOKENS, 9),
        (Kind.FINISHED, 10),
    ]


def test_busy_time_is_the_time_in_which_something_ran() -> None:
    engine = Engine(PLAIN)
    engine.submit(Request("a", [], 400, 11), 5.0)
    engine.advance(5.25)
    assert engine.busy_until(5.25) == pytest.approx((0.25, 0.25))
    engine.advance(100.0)
    assert engine.busy_until(100.0) == pytest.approx((0.5, 0.5 + 0.11))


# hits


def _hits(engine: Engine, request: Request) -> int:
    engine.submit(request, engine.spec.step_s * 1e6 + engine.counters.submitted * 1000)
    return _run_out(engine)[-1].cached


def test_the_first_look_finds_nothing_and_the_second_all_full_blocks() -> None:
    engine = Engine(PLAIN)
    assert _hits(engine, Request(1, [11, 12, 13], 50, 1)) == 0
    assert _hits(engine, Request(2, [11, 12, 13], 50, 1)) == 48
    assert (engine.counters.queried_tokens, engine.counters.hit_tokens) == (100, 48)
    assert engine.counters.hit_rate == 0.48


def test_the_last_token_is_always_computed_so_a_prompt_of_whole_blocks_misses_its_last_block() -> None:
    engine = Engine(PLAIN)
    _hits(engine, Request(1, [11, 12, 13], 48, 1))
    assert _hits(engine, Request(2, [11, 12, 13], 48, 1)) == 32
    assert _hits(engine, Request(3, [11, 12, 13], 49, 1)) == 48


def test_hits_end_at_the_first_block_that_differs() -> None:
    engine = Engine(PLAIN)
    _hits(engine, Request(1, [11, 12, 13], 50, 1))
    assert _hits(engine, Request(2, [11, 99, 13], 50, 1)) == 16


def test_a_request_behind_one_with_the_same_prefix_finds_its_blocks() -> None:
    engine = Engine(PLAIN)
    engine.submit(Request(1, [11, 12, 13], 50, 100), 0.0)
    engine.submit(Request(2, [11, 12, 14], 50, 100), 0.0)
    cached = {event.id: event.cached for event in _run_out(engine)}
    assert cached == {1: 0, 2: 32}


def test_the_end_of_the_least_recently_used_chain_is_evicted_first() -> None:
    engine = Engine(replace(PLAIN, blocks=6))
    _hits(engine, Request("old", [1, 2, 3], 49, 1))
    _hits(engine, Request("young", [4, 5], 33, 1))  # 5 keyed blocks cached, 1 free
    _hits(engine, Request("new", [7], 17, 1))  # needs 2: evicts one block, the end of the oldest chain
    assert 3 not in engine.cache
    assert all(key in engine.cache for key in (1, 2, 4, 5, 7))


def test_output_blocks_serve_the_next_turn() -> None:
    engine = Engine(PLAIN)
    _hits(engine, Request(1, [1, 2], 40, 24, output_keys=[3, 4]))
    assert _hits(engine, Request(2, [1, 2, 3, 4], 70, 1)) == 64


def test_a_reset_forgets_all_blocks_but_not_while_a_request_runs() -> None:
    engine = Engine(PLAIN)
    engine.submit(Request(1, [1, 2], 40, 100), 0.0)
    assert not engine.reset_cache()
    _run_out(engine)
    assert engine.reset_cache()
    assert _hits(engine, Request(2, [1, 2], 40, 1)) == 0


# cancel and refusals


def test_a_cancelled_prefill_frees_the_lane_and_leaves_only_what_it_computed() -> None:
    engine = Engine(replace(PLAIN, prefill_overhead_s=0))
    engine.submit(Request("a", list(range(20)), 320, 10), 0.0)
    engine.submit(Request("b", [], 100, 1), 0.0)
    assert engine.cancel("a", 0.1)  # 100 tokens: 6 full blocks
    assert [key in engine.cache for key in (0, 5, 6, 19)] == [True, True, False, False]
    assert _times(_run_out(engine), Kind.FIRST_TOKEN)["b"] == pytest.approx(0.2)


def test_a_cancelled_decode_gives_back_its_place_and_keeps_its_prompt() -> None:
    engine = Engine(replace(PLAIN, max_num_seqs=1))
    engine.submit(Request("a", [1, 2], 40, 1000), 0.0)
    engine.submit(Request("b", [1, 2], 40, 1), 0.0)
    engine.advance(1.0)
    assert engine.cancel("a", 1.0)
    events = _run_out(engine)
    assert _times(events, Kind.STARTED)["b"] == 1.0
    assert events[-1].cached == 32


def test_cancelling_what_is_not_there_changes_nothing() -> None:
    engine = Engine(PLAIN)
    assert not engine.cancel("nobody", 1.0)
    assert engine.counters.cancelled == 0


def test_a_request_larger_than_the_cache_is_refused() -> None:
    engine = Engine(replace(PLAIN, blocks=4))
    with pytest.raises(TooLargeError, match="needs 5 blocks, the KV cache has 4"):
        engine.submit(Request("a", [], 64, 2), 0.0)


def test_time_does_not_run_backwards_and_ids_are_unique() -> None:
    engine = Engine(PLAIN)
    engine.submit(Request("a", [], 64, 2), 5.0)
    with pytest.raises(ValueError, match="already here"):
        engine.submit(Request("a", [], 64, 2), 5.0)
    with pytest.raises(ValueError, match="backwards"):
        engine.advance(4.0)


# properties

SMALL = replace(PLAIN, blocks=40, max_num_seqs=3, chunk_tokens=64)


@st.composite
def _traffic(draw: st.DrawFn) -> list[tuple[float, Request, float | None]]:
    """Requests with arrival and, for some, the time after which the client leaves."""
    traffic = []
    now = 0.0
    for number in range(draw(st.integers(1, 30))):
        now += draw(st.floats(0, 0.3))
        document, blocks = draw(st.integers(0, 3)), draw(st.integers(0, 20))
        prompt = blocks * 16 + draw(st.integers(1, 16))
        keys = [document * 1000 + depth for depth in range(prompt // 16)]
        leaves = draw(st.none() | st.floats(0, 1))
        traffic.append((now, Request(number, keys, prompt, draw(st.integers(1, 60))), leaves))
    return traffic


def _play(traffic: list[tuple[float, Request, float | None]], interval: int) -> tuple[list[Event], Engine]:
    engine = Engine(SMALL, interval)
    actions: list[tuple[float, int, Request]] = []
    for arrival, request, leaves in traffic:
        actions.append((arrival, 0, request))
        if leaves is not None:
            actions.append((arrival + leaves, 1, request))
    events = []
    for at, what, request in sorted(actions, key=lambda action: (action[0], action[1], action[2].id)):
        while engine.next_event() <= at:
            events += engine.advance(engine.next_event())
            _check_limits(engine)
        if what:
            engine.cancel(request.id, at)
        else:
            engine.submit(request, at)
        _check_limits(engine)
    events += _run_out(engine)
    return events, engine


def _check_limits(engine: Engine) -> None:
    assert engine.running <= engine.spec.max_num_seqs
    assert engine.cache.in_use <= engine.spec.blocks
    assert engine.cache.cached <= engine.spec.blocks


@settings(max_examples=60, deadline=None)
@given(_traffic(), st.sampled_from([0, 1, 3]))
def test_every_request_finishes_or_is_cancelled_exactly_once_within_the_limits(
    traffic: list[tuple[float, Request, float | None]], interval: int
) -> None:
    events, engine = _play(traffic, interval)
    finished = Counter(event.id for event in events if event.kind is Kind.FINISHED)
    assert set(finished.values()) <= {1}
    assert len(finished) == engine.counters.finished
    assert engine.counters.finished + engine.counters.cancelled == engine.counters.submitted == len(traffic)
    patient = {request.id for _, request, leaves in traffic if leaves is None}
    assert patient <= set(finished)
    assert (engine.running, engine.waiting, engine.cache.in_use) == (0, 0, 0)
    assert 0 <= engine.counters.hit_tokens <= engine.counters.queried_tokens
    assert [event.time for event in events] == sorted(event.time for event in events)


@settings(max_examples=30, deadline=None)
@given(_traffic())
def test_equal_traffic_gives_equal_events_and_no_interval_or_polling_changes_the_times(
    traffic: list[tuple[float, Request, float | None]],
) -> None:
    coarse, first = _play(traffic, 0)
    again, second = _play(traffic, 0)
    assert coarse == again
    assert first.counters == second.counters
    fine, _ = _play(traffic, 1)
    assert [event for event in fine if event.kind is not Kind.TOKENS] == coarse


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_preset_is_a_plausible_engine_and_names_its_source(name: str) -> None:
    spec = PRESETS[name]
    assert spec.source
    assert 1_000 < spec.prefill_tokens_per_s < 100_000
    assert 0.002 < spec.step_s < 0.1
    assert spec.blocks >= 1000
