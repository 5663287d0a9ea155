"""Digests, against published values and against each other."""

from __future__ import annotations

import hashlib
import itertools
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cacheprep.digests import hasher
from cacheprep.listing import Digest


def digest_of(algorithm: str, *pieces: bytes) -> str:
    computed = hasher(Digest(algorithm, ""), sum(map(len, pieces)))
    for piece in pieces:
        computed.update(piece)
    return computed.hexdigest()


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        # The check value of each catalogued CRC is that of "123456789": reveng.sourceforge.io/crc-catalogue
        ("crc64nvme", "ae8b14860a799888"),
        ("crc32c", "e3069283"),
        ("crc32", "cbf43926"),
        ("sha256", hashlib.sha256(b"123456789").hexdigest()),
        # printf 123456789 | git hash-object --stdin
        ("git-blob-sha1", hashlib.sha1(b"blob 9\x00123456789").hexdigest()),
    ],
)
def test_known_values(algorithm: str, expected: str) -> None:
    assert digest_of(algorithm, b"123456789") == expected
    assert digest_of(algorithm, b"1234", b"", b"56789") == expected


def test_git_knows_the_empty_blob() -> None:
    assert digest_of("git-blob-sha1") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


@given(st.binary(max_size=200), st.integers(1, 50), st.lists(st.integers(0, 200), max_size=5))
def test_a_digest_in_parts_is_that_of_the_parts_digests_however_bytes_come(
    data: bytes, part: int, cuts: list[int]
) -> None:
    parts = [data[at : at + part] for at in range(0, len(data), part)] or [b""]
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(edges)]
    raw = b"".join(hashlib.sha256(one).digest() for one in parts)
    assert digest_of(f"sha256:{part}", *pieces) == hashlib.sha256(raw).hexdigest()
    raw = b"".join(zlib.crc32(one).to_bytes(4, "big") for one in parts)
    assert digest_of(f"crc32:{part}", *pieces) == zlib.crc32(raw).to_bytes(4, "big").hex()


def test_memory_views_are_taken_as_they_are() -> None:
    whole = memoryview(bytearray(b"x123456789x"))[1:-1]
    assert digest_of("crc32c", whole) == "e3069283"  # type: ignore[arg-type]


def test_an_algorithm_that_no_listing_takes_is_an_error() -> None:
    with pytest.raises(ValueError, match="md5"):
        hasher(Digest("md5", ""), 0)
