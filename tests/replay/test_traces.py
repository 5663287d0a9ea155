"""Trace files: what is read, and what a line that cannot be used costs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from extproc.prefix import BlockKeys
from extproc.replay import log
from extproc.replay.arrival import TOKEN_BYTES, engine_blocks
from extproc.replay.traces import joined, read
from extproc.replay.traces.lines import TraceError, iso
from tests.replay.traffic import DATA


def write(path: Path, *rows: object) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def chat(*contents: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text} for text in contents], **more}


def test_mooncake_ids_are_the_blocks_of_router_and_engine() -> None:
    trace = read(DATA / "mooncake.jsonl")
    first, second = trace.arrivals[:2]
    assert len(trace.arrivals) == 60
    assert not trace.problems
    assert (first.prompt_tokens, first.output_tokens, trace.block_tokens) == (6758, 500, 512)
    assert (
        len(first.keys.keys) == 14
    )  # the last one is not full: the router knows it, the engine has no block
    assert len(first.blocks) == 13
    assert first.keys.ends[-1] == 6758 * TOKEN_BYTES
    assert first.blocks[0] == second.blocks[0]
    assert first.blocks[1] != second.blocks[1]


def test_a_system_prompt_that_all_share_is_no_session() -> None:
    trace = read(DATA / "mooncake.jsonl")
    assert len({arrival.session for arrival in trace.arrivals}) > 30


def test_azure_prompts_share_nothing_and_the_trace_says_so() -> None:
    trace = read(DATA / "azure.csv")
    assert len(trace.arrivals) == 19
    assert not trace.has_prefixes
    assert "does not say which prompts begin alike" in trace.notes[0]
    assert len({arrival.keys.keys[0] for arrival in trace.arrivals}) == 19
    assert trace.arrivals[1].at == pytest.approx(0.052, abs=1e-6)


def test_a_turn_of_a_session_continues_the_turn_before() -> None:
    trace = read(DATA / "taubench.jsonl", block_tokens=16)
    sessions: dict[int, list[list[int]]] = {}
    for arrival in trace.arrivals:
        sessions.setdefault(arrival.session, []).append(list(arrival.blocks))
    assert len(sessions) == 3
    assert any(len(turns) > 1 for turns in sessions.values())
    for turns in sessions.values():
        for before, after in pairwise(turns):
            assert after[: len(before)] == before
    assert len({turns[0][0] for turns in sessions.values()}) == 1  # the system prompt


def test_own_bodies_are_read_as_the_router_reads_them(tmp_path: Path) -> None:
    text = "a long question " * 50
    trace = read(
        write(
            tmp_path / "mine.jsonl",
            {"timestamp": "2024-05-01T12:00:01.5Z", "path": "/v1/chat/completions", "body": chat(text, "b")},
            {"timestamp": "2024-05-01T12:00:00Z", "body": chat(text, max_tokens=7), "session": "s"},
            {"timestamp": "2024-05-01T12:00:03Z", "path": "/v1/completions", "body": {"prompt": text}},
        ),
        block_tokens=16,
    )
    first, second, third = trace.arrivals
    assert [arrival.at for arrival in trace.arrivals] == [0.0, 1.5, 3.0]
    assert first.output_tokens == 7
    assert first.session
    assert not second.session
    assert second.keys.keys[: len(first.keys.keys)] == first.keys.keys
    assert first.blocks[0] == second.blocks[0]
    assert third.blocks[0] != first.blocks[0]
    assert third.prompt_tokens == len(text) // TOKEN_BYTES


def test_seconds_are_as_good_as_a_date(tmp_path: Path) -> None:
    rows = [{"timestamp": 17.25 + at, "body": chat("hello")} for at in range(3)]
    assert [one.at for one in read(write(tmp_path / "t", *rows)).arrivals] == [0.0, 1.0, 2.0]


def test_fractions_of_seconds_may_have_seven_digits() -> None:
    assert iso("1970-01-01 00:00:01.9799600") == pytest.approx(1.97996)


def test_a_malformed_line_is_named_and_the_rest_is_read(tmp_path: Path) -> None:
    good = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
    path = write(
        tmp_path / "trace.jsonl",
        good,
        "{not json",
        {**good, "input_length": "many"},
        {**good, "hash_ids": [1, 2, 3]},
        {**good, "hash_ids": [1, 1]},
        {**good, "timestamp": None},
        {**good, "timestamp": 5000},
    )
    trace = read(path)
    assert [arrival.at for arrival in trace.arrivals] == [0.0, 5.0]
    assert [problem.line for problem in trace.problems] == [2, 3, 4, 5, 6]
    assert str(trace.problems[1]).startswith(f"{path}:3: input_length: expected a whole number")


def test_a_body_without_prompt_is_named(tmp_path: Path) -> None:
    good = {"timestamp": 1, "body": chat("hello")}
    trace = read(write(tmp_path / "t", good, {"timestamp": 2, "body": 3}, {"timestamp": "noon", "body": {}}))
    assert len(trace.arrivals) == 1
    assert [problem.line for problem in trace.problems] == [2, 3]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is empty"),
        ("once upon a time\n", "none of the formats mooncake, azure"),
        ('{"hash_ids": 3}\n', "no usable line among 1; the first: "),
    ],
)
def test_a_file_without_any_request_is_refused(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "t"
    path.write_text(content)
    with pytest.raises(TraceError, match=says):
        read(path)


def test_engine_blocks_of_router_keys_agree_as_far_as_the_keys_do(tmp_path: Path) -> None:
    shared = "shared words " * 400
    path = write(
        tmp_path / "t",
        *({"timestamp": at, "body": chat(shared + ending)} for at, ending in enumerate(("one", "two"))),
    )
    one, two = (arrival.keys for arrival in read(path).arrivals)
    a, b = engine_blocks(one, 16), engine_blocks(two, 16)
    same = next(at for at, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1])
    assert a[same:] != b[same:]
    assert not set(a[same:]) & set(b[same:])
    # At most an eighth is lost against the text itself.
    assert same * 16 * TOKEN_BYTES >= len(shared) * 7 / 8 - 2 * 16 * TOKEN_BYTES


def test_a_part_of_a_trace_begins_at_zero() -> None:
    whole = read(DATA / "mooncake.jsonl")
    half = whole.part(0.5, 1.0)
    assert len(half.arrivals) == 30
    assert half.arrivals[0].at == 0.0
    assert half.arrivals[0].keys == whole.arrivals[30].keys


def test_times_begin_at_zero_whatever_the_clock_of_the_file(tmp_path: Path) -> None:
    row = {"timestamp": 1.7e12, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
    trace = read(write(tmp_path / "t", row, {**row, "timestamp": 1.7e12 + 2500}))
    assert [arrival.at for arrival in trace.arrivals] == [0.0, 2.5]
    assert trace.origin == 1.7e9


def test_a_byte_order_mark_is_no_part_of_the_first_line(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(b"\xef\xbb\xbf" + (DATA / "mooncake.jsonl").read_bytes())
    assert len(read(path).arrivals) == 60


def test_answers_of_unknown_length_have_the_one_that_is_given(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t",
        {"timestamp": 0, "body": chat("hello")},
        {"timestamp": 1, "body": chat("hello", max_tokens=7)},
        {"timestamp": 2, "body": chat("hello", max_tokens=-1), "output_tokens": 0},
        {"timestamp": 3, "body": chat("hello", max_tokens="many"), "output_tokens": 9},
    )
    trace = read(path, output_tokens=33)
    assert [arrival.output_tokens for arrival in trace.arrivals] == [33, 7, 33, 9]
    assert trace.notes == [
        "The trace does not say how long answers of 2 requests were: each is taken as 33 tokens."
    ]


@pytest.mark.parametrize("value", [10**9, 10**30, -1, True, 1.5, "7"])
def test_a_number_of_tokens_that_is_none_is_named(tmp_path: Path, value: object) -> None:
    good = {"timestamp": 0, "input_length": 600, "output_length": 3, "hash_ids": [1, 2]}
    trace = read(write(tmp_path / "t", good, {**good, "output_length": value}))
    assert len(trace.arrivals) == 1
    assert [problem.what.partition(":")[0] for problem in trace.problems] == ["output_length"]


def test_logs_with_different_secrets_are_found_out_when_joined(tmp_path: Path) -> None:
    traces = []
    for name, secret in (("a", b"1" * 16), ("b", b"2" * 16)):
        line = log.formatter(secret)
        path = tmp_path / name
        path.write_bytes(
            b"".join(line(log.Record(1e9 + at, "p", BlockKeys([1, 2], [512, 900]), 900)) for at in range(3))
        )
        traces.append(read(path))
    assert "different secrets" in " ".join(joined(traces).notes)
    assert "different secrets" not in " ".join(joined(traces[:1] * 2).notes)


def test_traces_with_blocks_of_different_sizes_are_not_joined() -> None:
    with pytest.raises(TraceError, match="their blocks have 64 and 512 tokens"):
        joined([read(DATA / "mooncake.jsonl"), read(DATA / "taubench.jsonl", block_tokens=64)])
