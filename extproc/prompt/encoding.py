"""Content encodings of request bodies, undone as far as it is worth it.

Decoding stops at a cap, whatever a body would unfold to: time and memory are bounded by the cap for each
encoding, and there are at most MAX_ENCODINGS of them. Of a body that was cut, what can be decoded is: with
zstd that is up to the last whole block, of at most 128 KiB.

Source: RFC 9110, section 8.4 (content codings, in the order in which they were applied; `x-gzip`; `deflate`
is zlib's format, and some senders leave its wrapping out), RFC 1952 (gzip), RFC 7932 (br), RFC 8878 and 9659
(zstd, whose window is at most 8 MiB in HTTP).
"""

import zlib
from collections.abc import Callable

import brotli
import zstandard

MAX_ENCODINGS = 3
"""Encodings in a row that are undone. No client known applies two."""

_WINDOW_BYTES = 8 * 1024 * 1024
_SLICE_BYTES = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS
_RAW = -zlib.MAX_WBITS


def decode(body: bytes, content_encoding: str, cap: int) -> bytes | None:
    """Return the first bytes of a decoded body, at most `cap` of them; None if it cannot be decoded.

    `content_encoding` is the value of the header; empty and `identity` leave the body as it is, capped all
    the same. `body` may be cut anywhere. A second member or frame after the first is not decoded: no client
    known sends one. Raises ValueError if `cap` is not positive, and nothing else.
    """
    if cap <= 0:
        raise ValueError(f"cap must be positive, not {cap}")
    names = [name.strip().lower() for name in content_encoding.split(",")]
    decoders: list[Callable[[bytes, int], bytes]] = []
    for name in reversed(names):
        if name not in ("", "identity"):
            decoder = _DECODERS.get(name)
            if decoder is None or len(decoders) == MAX_ENCODINGS:
                return None
            decoders.append(decoder)
    for decoder in decoders:
        try:
            body = decoder(body, cap)
        except (zlib.error, brotli.error, zstandard.ZstdError):
            return None
    return body[:cap]


def _gzip(body: bytes, cap: int) -> bytes:
    return zlib.decompressobj(_GZIP).decompress(body, cap)


def _deflate(body: bytes, cap: int) -> bytes:
    # RFC 1950: method 8 in the low bits, and the first two bytes are a multiple of 31.
    wrapped = len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2], "big") % 31 == 0
    return zlib.decompressobj(zlib.MAX_WBITS if wrapped else _RAW).decompress(body, cap)


def _br(body: bytes, cap: int) -> bytes:
    decompressor = brotli.Decompressor()
    found = bytearray()
    part: bytes = decompressor.process(body, output_buffer_limit=cap)
    while part:  # of a body that was cut, each call returns no more than the decoder's ring buffer holds
        found += part
        part = b"" if len(found) >= cap else decompressor.process(b"", output_buffer_limit=cap - len(found))
    return bytes(found)


def _zstd(body: bytes, cap: int) -> bytes:
    decompressor = zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES)
    found = bytearray()
    with decompressor.stream_reader(body, read_across_frames=False) as reader:
        while len(found) < cap:
            part = reader.read(min(_SLICE_BYTES, cap - len(found)))
            if not part:
                break
            found += part
    return bytes(found)


_DECODERS: dict[str, Callable[[bytes, int], bytes]] = {
    "br": _br,
    "deflate": _deflate,
    "gzip": _gzip,
    "x-gzip": _gzip,
    "zstd": _zstd,
}
