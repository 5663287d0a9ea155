"""One way to write each JSON value, so that what two clients wrote differently is seen to be equal."""

import json

import orjson
import xxhash


def canonical(value: object) -> bytes:
    """Return a JSON value as UTF-8 JSON with sorted keys and no spaces.

    A few values that Python calls equal are written apart (1 and 1.0), and NaN as null.
    """
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:  # integers beyond 64 bits
        return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def digest(value: object) -> bytes:
    """Return 16 bytes (XXH3-128) that stand for a JSON value however it was written."""
    found: bytes = xxhash.xxh3_128_digest(canonical(value))
    return found
