"""The demo's requests: real sessions, real sharing of prefixes, the same every time."""

from __future__ import annotations

import gzip
from importlib.resources import files
from itertools import pairwise

import orjson
import pytest

from extproc.demo.traffic import BLOCK_BYTES, Traffic, block_text, probe_body, traffic
from extproc.simulation import tokens


@pytest.fixture(scope="module")
def used() -> Traffic:
    return traffic(45, 24, 1)


def test_traffic_is_the_same_for_the_same_seed_and_another_for_another() -> None:
    assert traffic(5, 10, 1) == traffic(5, 10, 1)
    assert traffic(5, 10, 1) != traffic(5, 10, 2)


def test_the_rate_is_kept_and_half_comes_from_each_source(used: Traffic) -> None:
    assert len(used.arrivals) == pytest.approx(45 * 24, rel=0.2)
    assert min(used.by_source.values()) > 0.4 * len(used.arrivals)


def test_arrivals_are_in_order_and_steady_from_the_first_second(used: Traffic) -> None:
    times = [arrival.at for arrival in used.arrivals]
    assert times == sorted(times)
    assert times[0] >= 0
    assert times[-1] <= 45
    per_third = [sum(start <= at < start + 15 for at in times) for start in (0, 15, 30)]
    assert min(per_third) > 0.6 * max(per_third)


def test_every_body_is_a_streamed_chat_request_of_at_most_60_kb(used: Traffic) -> None:
    for arrival in used.arrivals:
        fields = orjson.loads(arrival.body)
        assert fields["stream"] is True
        assert fields["max_tokens"] >= 1
        assert fields["messages"]
        assert len(arrival.body) <= 60_000


def test_a_session_grows_turn_by_turn_and_brings_its_tools(used: Traffic) -> None:
    sessions: dict[str, list[list[object]]] = {}
    for arrival in used.arrivals:
        if arrival.source == "tau-bench":
            fields = orjson.loads(arrival.body)
            assert fields["tools"]
            if len(fields["messages"]) > 3:
                opening = orjson.dumps(fields["messages"][1:4]).decode()
                sessions.setdefault(opening, []).append(fields["messages"])
    longest = max(sessions.values(), key=len)
    assert len(longest) > 5
    for earlier, later in pairwise(longest):
        assert len(later) > len(earlier)
        assert later[: len(earlier)] == earlier


def test_mooncake_bodies_share_prefixes_exactly_as_the_trace_says() -> None:
    packed = files("extproc.demo").joinpath("data", "mooncake_conversation_sample.jsonl.gz").read_bytes()
    rows = [orjson.loads(line) for line in gzip.decompress(packed).splitlines()]
    by_ids = {tuple(row["hash_ids"][:3]) for row in rows if len(row["hash_ids"]) > 3}
    first, second = sorted(by_ids)[:2]
    assert first != second
    texts = {ids: "".join(map(block_text, ids)) for ids in (first, second)}
    shared = sum(one == two for one, two in zip(first, second, strict=True))
    assert texts[first][: shared * BLOCK_BYTES] == texts[second][: shared * BLOCK_BYTES]
    assert texts[first] != texts[second]


def test_each_hash_id_becomes_as_many_bytes_of_text_and_no_two_the_same() -> None:
    texts = [block_text(block) for block in range(3000)]
    assert {len(text.encode()) for text in texts} == {BLOCK_BYTES}
    assert len(set(texts)) == 3000


def test_the_traffic_has_something_to_gain_and_something_that_no_cache_can_give(used: Traffic) -> None:
    seen: set[int] = set()
    found = queried = 0
    for arrival in used.arrivals:
        fields = orjson.loads(arrival.body)
        chain = tokens.chain(tokens.render_chat(fields["messages"], fields.get("tools")), 0)
        queried += len(chain.keys)
        found += next((i for i, key in enumerate(chain.keys) if key not in seen), len(chain.keys))
        seen.update(chain.keys)
    assert 0.6 < found / queried < 0.9


def test_more_traffic_than_the_data_holds_is_refused_with_what_to_change() -> None:
    with pytest.raises(ValueError, match="--rate"):
        traffic(600, 200, 1)


def test_a_probe_has_the_size_asked_for_and_asks_for_no_token() -> None:
    body = probe_body(8192, 7)
    assert 8000 < len(body) < 8300
    assert orjson.loads(body)["max_tokens"] == 0
    assert probe_body(8192, 8) != body
