"""A log of routed requests that can be replayed: hashes and lengths, no text.

One JSON object per line, its fields in this order:

    {"keys":"<base64>","ends":"<base64>","at":1718000000.25,"pool":"llama","length":8123,"output_tokens":0}

- `keys`: the block keys, unsigned 64-bit little-endian, each hashed with a secret that is not written (keyed
  BLAKE2b, RFC 7693). Equal keys mean equal prompts up to there; whether a guessed prompt is among them cannot
  be tried out without the secret.
- `ends`: where each key's block ends in the content, bytes, unsigned 32-bit little-endian.
- `at`: when the request came, seconds since 1970.
- `pool`: the pool's name.
- `length`: bytes of the body that were seen.
- `output_tokens`: tokens of the answer, 0 if not known.

A prompt of 8 KB (35 keys) takes about 0.7 KB. Files rotate by size: `requests.jsonl` is the newest,
`requests.jsonl.1` the one before it.
"""

from __future__ import annotations

import math
import struct
from base64 import b64decode, b64encode
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from extproc.prefix import BlockKeys

BUFFER_BYTES = 64 * 1024
"""Lines are written when so many bytes are waiting."""


class Record(NamedTuple):
    """One request in the log."""

    at: float
    """Seconds since 1970."""
    pool: str
    keys: BlockKeys
    length: int
    """Bytes of body."""
    output_tokens: int = 0
    """0: not known."""


def line(record: Record, secret: bytes) -> bytes:
    """The record as a line, its keys hashed with `secret` (16 to 64 random bytes)."""
    hashed = [blake2b(struct.pack("<Q", key), digest_size=8, key=secret).digest() for key in record.keys.keys]
    fields = {
        "keys": b64encode(b"".join(hashed)).decode(),
        "ends": b64encode(np.array(record.keys.ends, dtype="<u4").tobytes()).decode(),
        "at": round(record.at, 6),
        "pool": record.pool,
        "length": record.length,
        "output_tokens": record.output_tokens,
    }
    return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)


def parse(text: bytes) -> Record:
    """The record of a line; its keys are the hashed ones. Raises ValueError that says what is wrong."""
    try:
        fields = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ValueError(f"not JSON: {error}") from error
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    keys, ends = _array(fields, "keys", "<u8"), _array(fields, "ends", "<u4")
    if len(keys) != len(ends):
        raise ValueError(f"{len(keys)} keys and {len(ends)} ends")
    if any(after < before for before, after in pairwise(ends)):
        raise ValueError("ends: not in ascending order")
    at, length, output = fields.get("at"), fields.get("length"), fields.get("output_tokens", 0)
    if isinstance(at, bool) or not isinstance(at, int | float) or not math.isfinite(at):
        raise ValueError(f"at: expected seconds, not {at!r}")
    if not (type(length) is int and length >= 0 and type(output) is int and output >= 0):
        raise ValueError("length and output_tokens: expected whole numbers from 0")
    return Record(float(at), str(fields.get("pool", "")), BlockKeys(keys, ends), length, output)


def _array(fields: dict[str, Any], name: str, kind: str) -> list[int]:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name}: expected base64 text")
    try:
        found: list[int] = np.frombuffer(b64decode(value, validate=True), dtype=kind).tolist()
    except ValueError:
        raise ValueError(f"{name}: not base64 of whole numbers") from None
    return found


class Writer:
    """Writes records to `path`, rotating it; never raises.

    Synchronous: `write` appends to a buffer and touches the disk once per `BUFFER_BYTES`; call `flush` now
    and then, and `close` at the end. A disk that fails costs records, which are counted, and nothing else.
    """

    def __init__(self, path: Path, secret: bytes, max_bytes: int = 256 * 1024 * 1024, files: int = 4) -> None:
        """Keep at most `files` files of about `max_bytes` each. Replicas whose logs are to be replayed
        together need the same `secret` (16 to 64 random bytes). ValueError for sizes below 1.
        """
        if max_bytes < 1 or files < 1:
            raise ValueError("max_bytes and files must be at least 1")
        if not 16 <= len(secret) <= 64:
            raise ValueError(f"the secret must have 16 to 64 bytes, not {len(secret)}")
        self._path = path
        self._secret = secret
        self._max_bytes = max_bytes
        self._files = files
        self._waiting: list[bytes] = []
        self._bytes = 0
        self.lost = 0
        """Records that could not be written."""

    def write(self, record: Record) -> None:
        """Take a record."""
        made = line(record, self._secret)
        self._waiting.append(made)
        self._bytes += len(made)
        if self._bytes >= BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write what waits."""
        lines, self._waiting, self._bytes = self._waiting, [], 0
        if not lines:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            if self._path.exists() and self._path.stat().st_size >= self._max_bytes:
                self._rotate()
            with self._path.open("ab") as file:
                file.write(b"".join(lines))
        except OSError:
            self.lost += len(lines)

    def close(self) -> None:
        """Write what waits; the writer may still be used."""
        self.flush()

    def _rotate(self) -> None:
        if self._files == 1:
            self._path.unlink()
            return
        for number in range(self._files - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)
