"""A log of routed requests that can be replayed: hashes and lengths, no text.

One JSON object per line, its fields in this order:

    {"keys":"<base64>","ends":"<base64>","at":1718000000.25,"pool":"llama","length":8123,"output_tokens":0}

- `keys`: the block keys, unsigned 64-bit little-endian, each hashed with a secret that is not written: eight
  bytes little-endian and eight zeros, encrypted with AES-256 (FIPS 197) under the BLAKE2b-256 of the secret,
  first eight bytes. Equal keys mean equal prompts up to there; whether a guessed prompt is among them cannot
  be tried out without the secret.
- `ends`: where each key's block ends in the content, bytes, unsigned 32-bit little-endian.
- `at`: when the request came, seconds since 1970.
- `pool`: the pool's name.
- `length`: bytes of the body that were seen.
- `output_tokens`: tokens of the answer, 0 if not known.

A prompt of 8 KB (40 keys) takes about 0.7 KB. Files rotate by size: `requests.jsonl` is the newest,
`requests.jsonl.1` the one before it.
"""

from __future__ import annotations

import math
import os
import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from extproc.prefix import BlockKeys

LEAST_SECRET_BYTES = 16
MODE = 0o600
"""Permissions of a new file: who may read it learns when which requests were alike."""


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


def formatter(secret: bytes) -> Callable[[Record], bytes]:
    """What makes a record a line, its keys hashed with `secret`. ValueError if that is shorter than
    `LEAST_SECRET_BYTES`."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    if len(secret) < LEAST_SECRET_BYTES:
        raise ValueError(f"must have at least {LEAST_SECRET_BYTES} bytes, has {len(secret)}")
    # One call for all keys of a prompt: a sixth of the time that a keyed hash of each takes. Every block is
    # a value of its own, so what ECB gives away, which blocks are equal, is what the log is for.
    key = blake2b(secret, digest_size=32).digest()
    encrypt = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update  # noqa: S305

    def line(record: Record) -> bytes:
        keys, ends = record.keys.keys, record.keys.ends
        blocks = np.zeros((len(keys), 2), dtype="<u8")
        blocks[:, 0] = np.array(keys, dtype="<u8")
        hashed = np.frombuffer(encrypt(blocks.tobytes()), dtype="<u8")[::2]
        fields = {
            "keys": b64encode(hashed.tobytes()).decode(),
            "ends": b64encode(struct.pack(f"<{len(ends)}I", *ends)).decode(),
            "at": round(record.at, 6),
            "pool": record.pool,
            "length": record.length,
            "output_tokens": record.output_tokens,
        }
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)

    return line


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
    """Lines into `path`, rotated before a file would exceed `max_bytes`; at most `files` of them.

    Nothing stays open between two calls, so files may be moved or removed at any time. Two processes must not
    write to one path.
    """

    def __init__(self, path: Path, max_bytes: int, files: int) -> None:
        """ValueError for sizes below 1."""
        if max_bytes < 1 or files < 1:
            raise ValueError("max_bytes and files must be at least 1")
        self._path = path
        self._max_bytes = max_bytes
        self._files = files

    def write(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        """Append whole lines. Returns how many were written, and what stopped the rest."""
        done = 0
        try:
            while done < len(lines):
                written, error = self._fill(lines[done:])
                done += written
                if error is not None:
                    return done, error
                if done < len(lines):
                    self._rotate()
        except OSError as error:
            return done, error
        return done, None

    def _fill(self, lines: Sequence[bytes]) -> tuple[int, OSError | None]:
        """Append as many lines as the newest file has room for; an empty one has room for any line."""
        # Not blocking: a pipe that nobody reads is an error and not a wait.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        file = os.open(self._path, flags, MODE)
        try:
            size = os.fstat(file).st_size
            # A line that a crash cut must not swallow the next one.
            mend = b"\n" if size and os.pread(file, 1, size - 1) != b"\n" else b""
            room = self._max_bytes - size - len(mend)
            count = 0
            while count < len(lines) and (room >= len(lines[count]) or size == count == 0):
                room -= len(lines[count])
                count += 1
            if not count:
                return 0, None
            data = mend + b"".join(lines[:count])
            done, error = _write(file, data)
            if error is None:
                return count, None
            whole = data.rfind(b"\n", 0, done) + 1
            if whole < done:
                os.ftruncate(file, size + whole)
            return max(0, data.count(b"\n", 0, whole) - len(mend)), error
        finally:
            os.close(file)

    def _rotate(self) -> None:
        if self._files == 1:
            self._path.unlink()
            return
        for number in range(self._files - 1, 0, -1):
            older = self._path.with_name(f"{self._path.name}.{number}")
            newer = self._path if number == 1 else self._path.with_name(f"{self._path.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)


def _write(file: int, data: bytes) -> tuple[int, OSError | None]:
    view = memoryview(data)
    done = 0
    try:
        while done < len(data):
            done += os.write(file, view[done:])
    except OSError as error:
        return done, error
    return done, None
