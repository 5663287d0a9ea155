"""Compressed bodies are decoded as far as they go, and never further than the cap."""

import gzip
import time
import tracemalloc
import zlib
from collections.abc import Callable

import brotli
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from extproc.prompt.encoding import MAX_ENCODINGS, decode

CAP = 1024 * 1024
TEXT = "".join(
    f"Grüße {i} aus Ulm. " for i in range(12_000)
).encode()  # 260 KB: zstd decodes blocks of 128 KiB


def deflate_without_wrapping(data: bytes) -> bytes:
    return zlib.compress(data, wbits=-zlib.MAX_WBITS)


def br(data: bytes) -> bytes:
    found: bytes = brotli.compress(data, quality=1)
    return found


def zstd_without_a_size(data: bytes) -> bytes:
    compressor = zstandard.ZstdCompressor().compressobj()
    return compressor.compress(data) + compressor.flush()


ENCODERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "deflate without wrapping": ("deflate", deflate_without_wrapping),
    "br": ("br", br),
    "zstd": ("zstd", zstandard.ZstdCompressor().compress),
    "zstd without a size": ("zstd", zstd_without_a_size),
}
encodings = pytest.mark.parametrize(("name", "encode"), ENCODERS.values(), ids=ENCODERS.keys())


@encodings
def test_a_whole_body_is_decoded(name: str, encode: Callable[[bytes], bytes]) -> None:
    assert decode(encode(TEXT), name, CAP) == TEXT
    assert decode(encode(b""), name, CAP) == b""


@encodings
def test_of_a_body_cut_anywhere_the_first_part_is_decoded(
    name: str, encode: Callable[[bytes], bytes]
) -> None:
    whole = encode(TEXT)
    lengths = []
    for cut in [*range(20), *range(20, len(whole), len(whole) // 12)]:
        part = decode(whole[:cut], name, CAP)
        assert part is not None
        assert TEXT.startswith(part)
        lengths.append(len(part))
    assert lengths == sorted(lengths)
    assert lengths[-1] > len(TEXT) // 3


@encodings
@pytest.mark.parametrize("cap", [1, 1000, len(TEXT), len(TEXT) + 1])
def test_decoding_ends_at_the_cap(name: str, encode: Callable[[bytes], bytes], cap: int) -> None:
    assert decode(encode(TEXT), name, cap) == TEXT[:cap]


@encodings
def test_a_bomb_costs_no_more_than_the_cap(name: str, encode: Callable[[bytes], bytes]) -> None:
    bomb = encode(bytes(32 * CAP))
    assert len(bomb) < CAP
    tracemalloc.start()
    began = time.process_time()
    assert decode(bomb, name, CAP) == bytes(CAP)
    took = time.process_time() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 5 * CAP
    assert took < 0.25, "seconds of CPU"


def test_a_bomb_in_a_bomb_costs_no_more() -> None:
    bomb = gzip.compress(gzip.compress(bytes(32 * CAP)))
    assert decode(bomb, "gzip, gzip", CAP) == bytes(CAP)


def test_many_small_members_in_a_row_are_not_decoded_one_after_another() -> None:
    assert decode(gzip.compress(b"a") + gzip.compress(b"b") * 50_000, "gzip", CAP) == b"a"


def test_encodings_in_a_row_are_undone_from_the_last_to_the_first() -> None:
    body = br(zlib.compress(gzip.compress(TEXT)))
    assert decode(body, "gzip, deflate, br", CAP) == TEXT
    assert decode(body, "br, deflate, gzip", CAP) is None


def test_more_encodings_than_any_client_applies_are_not_undone() -> None:
    body = TEXT
    for _ in range(MAX_ENCODINGS + 1):
        body = gzip.compress(body)
    assert decode(body, ", ".join(["gzip"] * (MAX_ENCODINGS + 1)), CAP) is None


@pytest.mark.parametrize("name", ["", "identity", " Identity ", "identity, identity", ","])
def test_no_encoding_leaves_the_body_as_it_is_up_to_the_cap(name: str) -> None:
    assert decode(TEXT, name, CAP) == TEXT
    assert decode(TEXT, name, 10) == TEXT[:10]


@pytest.mark.parametrize("name", ["GZIP", " gzip ", "identity,gzip", "gzip,"])
def test_names_are_read_as_http_writes_them(name: str) -> None:
    assert decode(gzip.compress(TEXT), name, CAP) == TEXT


@pytest.mark.parametrize("name", ["compress", "aws-chunked", "gzip, zip", "gzip;q=1", "ü", "\0"])
def test_an_unknown_encoding_is_not_decoded(name: str) -> None:
    assert decode(gzip.compress(TEXT), name, CAP) is None


@encodings
def test_a_body_that_is_not_what_it_says_is_not_decoded(name: str, encode: Callable[[bytes], bytes]) -> None:
    assert decode(b'{"model":"m","messages":[]}', name, CAP) is None


def test_a_window_larger_than_http_allows_is_not_decoded() -> None:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=27, write_content_size=0)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    assert decode(compressor.compress(TEXT) + compressor.flush(), "zstd", CAP) is None


@pytest.mark.parametrize("cap", [0, -1])
def test_a_cap_must_be_positive(cap: int) -> None:
    with pytest.raises(ValueError, match="cap must be positive"):
        decode(b"", "", cap)


@given(
    st.binary(),
    st.lists(st.sampled_from(["gzip", "deflate", "br", "zstd", "identity", "x"]), max_size=4),
    st.integers(1, 99),
)
def test_no_bytes_are_an_error(body: bytes, names: list[str], cap: int) -> None:
    found = decode(body, ",".join(names), cap)
    assert found is None or len(found) <= cap


@given(st.sampled_from(sorted(ENCODERS)), st.binary(min_size=1), st.integers(0, 10_000), st.integers(0, 255))
def test_no_byte_changed_on_the_way_is_an_error(encoder: str, data: bytes, at: int, byte: int) -> None:
    name, encode = ENCODERS[encoder]
    body = bytearray(encode(data))
    body[at % len(body)] = byte
    found = decode(bytes(body), name, 100)
    assert found is None or len(found) <= 100
