"""Files on a real disk, written in any order past the page cache and through it."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cacheprep.failures import Failure, Reason
from cacheprep.listing import Digest, File
from cacheprep.transfer import pieces as memory
from cacheprep.transfer.disk import ALIGNED, DIRECT_FROM, DiskFile
from cacheprep.transfer.journal import Claim
from cacheprep.transfer.partial import PartialFile, RangeWriter, Revoked
from cacheprep.transfer.pieces import Pieces
from cacheprep.transfer.ranges import Range, cut

LARGE = 3 * memory.LARGEST_BYTES + 5 * ALIGNED + 77
sizes = st.sampled_from(
    [1, ALIGNED - 1, DIRECT_FROM - 1, DIRECT_FROM, DIRECT_FROM + 1, memory.LARGEST_BYTES, LARGE]
)
lengths = st.sampled_from([100_003, 64 * ALIGNED, memory.LARGEST_BYTES, 2 * memory.LARGEST_BYTES + ALIGNED])


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def file_of(data: bytes) -> File:
    return File("model", len(data), (Digest("sha256", hashlib.sha256(data).hexdigest()),), "v1")


def bring(writer: RangeWriter, data: bytes, step: int, stop: int | None = None) -> None:
    """Put bytes into a range, `step` at a time, up to `stop` or its end."""
    end = writer.range.end if stop is None else stop
    while (room := writer.room()) and writer.at < end:
        taken = data[writer.at : min(writer.at + step, writer.at + len(room), end)]
        room[: len(taken)] = taken
        writer.took(len(taken))


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sizes, lengths, st.integers(0, 3), st.randoms(use_true_random=False))
def test_ranges_in_any_order_are_the_file_and_its_sha256_however_many_pieces_may_be_kept(
    tmp_path: Path, size: int, length: int, kept: int, chance: random.Random
) -> None:
    data, pieces = content(size), Pieces(1)
    (tmp_path / "model").unlink(missing_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "_may_be_kept", kept)
        partial = PartialFile(str(tmp_path / "model"), file_of(data), pieces)
        ranges = list(cut([Range(0, size)], length))
        chance.shuffle(ranges)
        for range_ in ranges:
            writer = partial.writer(range_)
            bring(writer, data, 200_000)
            assert writer.finish().range == range_
        assert partial.sha256() == hashlib.sha256(data).hexdigest()
        partial.close()
        assert (tmp_path / "model").read_bytes() == data
        # All that was kept was given back.
        assert [pieces.keep() for _ in range(kept + 1)] == [True] * kept + [False]


def test_a_successor_goes_on_where_a_range_was_taken_away_and_nothing_more_comes_from_the_first(
    tmp_path: Path,
) -> None:
    data = content(LARGE)
    partial = PartialFile(str(tmp_path / "model"), file_of(data), Pieces(1))
    first = partial.writer(Range(0, LARGE))
    stop = memory.LARGEST_BYTES + 1234
    bring(first, data, 100_000, stop)
    late = first.room()
    second = first.revoke()
    assert second.at == stop
    late[:] = bytes(len(late))  # the thread that hung comes back
    with pytest.raises(Revoked):
        first.took(len(late))
    bring(second, data, 100_000)
    second.finish()
    assert partial.sha256() == hashlib.sha256(data).hexdigest()
    partial.close()
    assert (tmp_path / "model").read_bytes() == data


def test_claims_of_an_earlier_run_count_if_the_disk_has_those_bytes(tmp_path: Path) -> None:
    data, path = content(LARGE), tmp_path / "model"
    partial = PartialFile(str(path), file_of(data), Pieces(1))
    claims = []
    for range_ in cut([Range(0, LARGE)], memory.LARGEST_BYTES):
        writer = partial.writer(range_)
        bring(writer, data, LARGE)
        claims.append(writer.finish())
    partial.close()
    with path.open("r+b") as file:
        file.seek(claims[1].range.start)
        file.write(b"\0" * 10)
    again = PartialFile(str(path), file_of(data), Pieces(1))
    missing = again.check([claims[0], claims[1], claims[3]], lambda _: None)
    assert missing == [Range(claims[1].range.start, claims[2].range.end)]
    for range_ in (claims[2].range, claims[1].range):
        writer = again.writer(range_)
        bring(writer, data, LARGE)
        writer.finish()
    assert again.sha256() == hashlib.sha256(data).hexdigest()
    again.close()


def test_wrong_bytes_are_told_with_both_digests(tmp_path: Path) -> None:
    data = content(DIRECT_FROM)
    partial = PartialFile(str(tmp_path / "model"), file_of(data), Pieces(1))
    writer = partial.writer(Range(0, len(data)))
    bring(writer, bytes(len(data)), len(data))
    assert isinstance(writer.finish(), Claim)
    with pytest.raises(Failure) as caught:
        partial.sha256()
    assert caught.value.reason is Reason.INTEGRITY_MISMATCH
    partial.close()


def test_what_is_written_past_the_page_cache_is_not_in_it(tmp_path: Path) -> None:
    data, pieces = content(memory.LARGEST_BYTES), Pieces(1)
    for size, cached in ((len(data), False), (DIRECT_FROM - 1, True)):
        path, piece = tmp_path / str(size), pieces.take()
        piece[:size] = data[:size]
        file = DiskFile(str(path), size)
        file.write(piece[:size], 0)
        file.close()
        assert (in_page_cache(path) > 0) is cached


def in_page_cache(path: Path) -> int:
    """Pages of a file that are in the page cache: mincore(2)."""
    import ctypes
    import mmap

    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as mapped:
        view = (ctypes.c_char * len(mapped)).from_buffer(mapped)
        found = (ctypes.c_ubyte * (-(-len(mapped) // mmap.PAGESIZE)))()
        address = ctypes.c_void_p(ctypes.addressof(view))
        assert libc.mincore(address, ctypes.c_size_t(len(mapped)), found) == 0
        del view
    return sum(page & 1 for page in found)


@pytest.mark.parametrize(("connections", "least"), [(1, 1 << 20), (16, 1 << 20), (256, 256 << 10)])
def test_pieces_of_many_connections_are_shorter_so_that_memory_stays_bounded(
    connections: int, least: int
) -> None:
    size = Pieces(connections).size
    assert size == least
    assert size * connections <= memory.IN_USE_BYTES
    assert size % ALIGNED == 0
