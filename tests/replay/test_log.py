"""The log that can be replayed: hashes only, bounded on disk, harmless when the disk is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from extproc.prefix import BlockKeys
from extproc.replay import log
from extproc.replay.log import Record, Writer
from extproc.replay.traces import read


def record(at: float, *keys: int) -> Record:
    return Record(
        at, "llama", BlockKeys(list(keys), [64 * (n + 1) for n in range(len(keys))]), 64 * len(keys)
    )


def test_what_was_written_is_read_but_for_the_keys_which_are_hashed() -> None:
    written = record(1718000000.25, 11, 12, 2**64 - 1)
    found = log.parse(log.line(written, secret=b"9" * 16))
    assert found._replace(keys=written.keys) == written
    assert found.keys.ends == written.keys.ends
    assert not set(found.keys.keys) & set(written.keys.keys)


def test_equal_prefixes_stay_equal_within_a_log_and_not_across_secrets() -> None:
    one, two = (log.parse(log.line(record(0, 11, 12, last), b"9" * 16)).keys.keys for last in (13, 14))
    other = log.parse(log.line(record(0, 11, 12, 13), b"8" * 16)).keys.keys
    assert one[:2] == two[:2]
    assert one[2] != two[2]
    assert not set(one) & set(other)


def test_a_log_is_replayed(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "log" / "requests.jsonl", secret=b"5" * 16)
    for at in range(10):
        writer.write(record(1000.0 + at, *range(at + 1)))
    writer.close()
    trace = read(tmp_path / "log" / "requests.jsonl", block_tokens=16)
    assert [arrival.at for arrival in trace.arrivals] == list(range(10))
    assert [len(arrival.keys.keys) for arrival in trace.arrivals] == list(range(1, 11))
    assert trace.arrivals[9].blocks[:9] == trace.arrivals[8].blocks
    assert trace.arrivals[9].prompt_tokens == 160


def test_files_rotate_and_their_number_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    writer = Writer(path, secret=b"5" * 16, max_bytes=1000, files=3)
    for at in range(60):
        writer.write(record(float(at), 1, 2, 3))
        writer.flush()
    names = sorted(file.name for file in tmp_path.iterdir())
    assert names == ["requests.jsonl", "requests.jsonl.1", "requests.jsonl.2"]
    assert all(file.stat().st_size < 1300 for file in tmp_path.iterdir())
    newest = log.parse(path.read_bytes().splitlines()[-1])
    assert newest.at == 59.0
    oldest = log.parse((tmp_path / "requests.jsonl.2").read_bytes().splitlines()[0])
    assert 0 < oldest.at < newest.at


def test_a_disk_that_fails_costs_records_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    writer = Writer(tmp_path / "file" / "requests.jsonl", secret=b"5" * 16)
    writer.write(record(0.0, 1))
    writer.close()
    assert writer.lost == 1


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"{",
        b'{"keys":"","ends":"AAAA"}',
        b'{"keys":"!","ends":""}',
        b'{"keys":"","ends":"","at":"x","length":1}',
        b'{"keys":"","ends":"","at":1,"length":-1}',
        b'{"keys":"AAAAAAAAAAAAAAAAAAAAAA==","ends":"BAAAAAEAAAA=","at":1,"length":1}',
    ],
)
def test_a_line_that_the_log_did_not_write_is_refused_with_a_reason(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w+"):
        log.parse(text)
