"""The log that can be replayed: hashes only, bounded on disk, harmless when the disk is not."""

from __future__ import annotations

import errno
import os
import resource
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extproc.prefix import BlockKeys
from extproc.replay import log
from extproc.replay.log import Record, Writer, formatter
from extproc.replay.traces import read

SECRET = b"9" * 16


def record(at: float, *keys: int) -> Record:
    return Record(
        at, "llama", BlockKeys(list(keys), [64 * (n + 1) for n in range(len(keys))]), 64 * len(keys)
    )


def lines(*ats: float, secret: bytes = SECRET) -> list[bytes]:
    return [formatter(secret)(record(at, 1, 2, 3)) for at in ats]


def ats(path: Path) -> list[float]:
    return [log.parse(line).at for line in path.read_bytes().splitlines()]


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """No file may grow beyond `size` bytes: the kernel takes a part of a write and refuses the rest."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_what_was_written_is_read_but_for_the_keys_which_are_hashed() -> None:
    written = record(1718000000.25, 11, 12, 2**64 - 1)
    found = log.parse(formatter(SECRET)(written))
    assert found._replace(keys=written.keys) == written
    assert found.keys.ends == written.keys.ends
    assert not set(found.keys.keys) & set(written.keys.keys)


def test_equal_prefixes_stay_equal_within_a_log_and_not_across_secrets() -> None:
    one, two = (log.parse(formatter(SECRET)(record(0, 11, 12, last))).keys.keys for last in (13, 14))
    other = log.parse(formatter(b"8" * 16)(record(0, 11, 12, 13))).keys.keys
    assert one[:2] == two[:2]
    assert one[2] != two[2]
    assert not set(one) & set(other)


def test_a_key_is_hashed_as_the_format_says() -> None:
    """As OpenSSL does it: the key, eight zero bytes, `openssl enc -aes-256-ecb -nopad -K` BLAKE2b-256 of the
    secret."""
    (key,) = log.parse(formatter(SECRET)(record(0, 11))).keys.keys
    assert key.to_bytes(8, "little").hex() == "59f71f9abffc6584"


@pytest.mark.parametrize("length", [0, 15])
def test_a_secret_that_is_too_short_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="must have at least 16 bytes"):
        formatter(b"1" * length)


def test_a_log_is_replayed(tmp_path: Path) -> None:
    line = formatter(SECRET)
    path = tmp_path / "requests.jsonl"
    made = [line(record(1000.0 + at, *range(at + 1))) for at in range(10)]
    assert Writer(path, 1 << 20, 4).write(made) == (10, None)
    trace = read(path, block_tokens=16)
    assert [arrival.at for arrival in trace.arrivals] == list(range(10))
    assert [len(arrival.keys.keys) for arrival in trace.arrivals] == list(range(1, 11))
    assert trace.arrivals[9].blocks[:9] == trace.arrivals[8].blocks
    assert trace.arrivals[9].prompt_tokens == 160


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=12), st.integers(200, 1000), st.integers(1, 4))
def test_files_rotate_no_line_is_cut_and_the_disk_used_is_bounded(
    tmp_path_factory: pytest.TempPathFactory, batches: list[int], max_bytes: int, files: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "requests.jsonl"
    writer = Writer(path, max_bytes, files)
    at = 0
    for count in batches:
        assert writer.write(lines(*range(at, at + count))) == (count, None)
        at += count
    found = [path.with_name(f"{path.name}.{number}") for number in range(files - 1, 0, -1)] + [path]
    there = [file for file in found if file.exists()]
    assert set(path.parent.iterdir()) == set(there)
    assert all(file.stat().st_size <= max_bytes for file in there)
    kept = [one for file in there for one in ats(file)]
    # The newest ones, in order, none twice.
    assert kept == list(range(at - len(kept), at))
    assert len(kept) == at or len(there) == files


def test_only_the_owner_may_read_a_log(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    before = os.umask(0)
    try:
        Writer(path, 1 << 20, 1).write(lines(1.0))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("room", range(1, 400, 57))
def test_a_full_disk_costs_the_lines_that_do_not_fit_and_none_of_those_around_them(
    tmp_path: Path, room: int
) -> None:
    path = tmp_path / "requests.jsonl"
    writer = Writer(path, 1 << 20, 2)
    writer.write(lines(1.0))
    with largest_file(path.stat().st_size + room):
        count, reason = writer.write(lines(2.0, 3.0, 4.0))
    assert isinstance(reason, OSError)
    assert reason.errno == errno.EFBIG
    assert 0 <= count < 3
    assert writer.write(lines(5.0)) == (1, None)
    assert ats(path) == [*[1.0, 2.0, 3.0, 4.0][: 1 + count], 5.0]


def test_a_line_that_a_crash_cut_does_not_swallow_the_next(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    first, second, third = lines(1.0, 2.0, 3.0)
    path.write_bytes(first + second[:40])
    assert Writer(path, 1 << 20, 2).write([third]) == (1, None)
    trace = read(path)
    assert len(trace.arrivals) == 2
    assert [problem.line for problem in trace.problems] == [2]


@pytest.mark.parametrize(
    ("where", "expected"),
    [("missing/requests.jsonl", errno.ENOENT), ("file/requests.jsonl", errno.ENOTDIR), (".", errno.EISDIR)],
)
def test_a_path_that_cannot_be_written_costs_records_and_says_why(
    tmp_path: Path, where: str, expected: int
) -> None:
    (tmp_path / "file").write_text("")
    count, reason = Writer(tmp_path / where, 1 << 20, 4).write(lines(1.0))
    assert count == 0
    assert isinstance(reason, OSError)
    assert reason.errno == expected


def test_a_full_device_costs_records_and_says_why() -> None:
    count, reason = Writer(Path("/dev/full"), 1 << 20, 4).write(lines(1.0, 2.0))
    assert count == 0
    assert isinstance(reason, OSError)
    assert reason.errno == errno.ENOSPC


def test_a_file_that_is_moved_away_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    writer = Writer(path, 1 << 20, 2)
    writer.write(lines(1.0))
    path.rename(tmp_path / "taken")
    writer.write(lines(2.0))
    assert ats(path) == [2.0]


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
