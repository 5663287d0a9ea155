"""Writes the log of requests that `extproc replay` reads (`replay.log`), beside the path of a request.

A request only appends its pick to a queue. A thread empties the queue each second: it hashes the keys and
writes. It works in small slices with a pause after each, because while it computes the event loop waits: the
interpreter lets one thread run at a time. A record costs some 20 us of processor time for a prompt of 8 KB,
of which the path of its request has less than one. Whatever goes wrong costs records, which are counted, and
never a request.
"""

from __future__ import annotations

import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import structlog

from extproc.config import RequestLogConfig
from extproc.metrics import RequestLogMetrics
from extproc.picker import Picked
from extproc.replay import log
from extproc.replay.log import Record

FLUSH_SECONDS = 1.0
"""Time between two writes."""
MOST_WAITING_KEYS = 1 << 18
"""Block keys that may wait to be written, some 20 MB: a disk may hang for long. More are lost."""
SLICE_KEYS = 300
"""Keys hashed without a pause: less than the router needs for one request."""
PAUSE_SECONDS = 0.0005
"""The event loop's turn after each slice; shorter where half a second is too short for all of them."""
CHUNK_LINES = 1024
"""Lines of one write at most."""
RANDOM_SECRET_BYTES = 32
MOST_SECRET_BYTES = 4096
"""Of a longer file the beginning is the secret."""

_log = structlog.get_logger(__name__)


class RequestLog:
    """The request log of one process, over reloads. Its methods are for the event loop's thread."""

    def __init__(self, metrics: RequestLogMetrics, draw: random.Random) -> None:
        """`draw` decides which requests are in a sample."""
        self._metrics = metrics
        self._draw = draw
        self._random_secret = secrets.token_bytes(RANDOM_SECRET_BYTES)
        self._running: _Running | None = None
        self._last: _Running | None = None

    def apply(self, config: RequestLogConfig | None) -> None:
        """Write by this configuration from now on; None: nothing. What waits is still written by the old."""
        if self._running is not None:
            if self._running.config == config:
                return
            self._running.close()
            self._running = None
        if config is not None:
            self._last = self._running = _Running(config, self._random_secret, self._metrics, self._last)

    def tell(self, picked: Picked) -> None:
        """Take a request, or leave it out of the sample."""
        running = self._running
        if running is not None and (running.sample >= 1.0 or self._draw.random() < running.sample):
            running.put(picked)

    def stop(self, seconds: float) -> None:
        """Take no more, write what waits, and return when that is done, after so many seconds at the latest.

        Blocks the thread that calls it.
        """
        self.apply(None)
        if self._last is not None:
            self._last.join(seconds)


class _Running:
    """The log as one configuration wants it: a queue and the thread that empties it."""

    def __init__(
        self, config: RequestLogConfig, secret: bytes, metrics: RequestLogMetrics, before: _Running | None
    ) -> None:
        self.config = config
        self.sample = config.sample
        self._secret: bytes | None = secret if config.secret_file is None else None
        self._writer = log.Writer(config.path, config.max_bytes, config.files)
        self._metrics = metrics
        self._waiting: deque[Picked] = deque()
        # Each count only rises and is written by one thread, so that their differences need no lock.
        self._keys_in = self._keys_out = 0
        self._full = False
        self._complaint = ""
        self._lost_since = 0
        self._closing = threading.Event()
        # A daemon, so that a process whose disk hangs can end.
        self._thread = threading.Thread(target=self._run, args=(before,), name="request log", daemon=True)
        self._thread.start()

    def put(self, picked: Picked) -> None:
        """Take a request."""
        cost = _cost(picked)
        if self._keys_in - self._keys_out + cost > MOST_WAITING_KEYS:
            self._metrics.too_many()
            if not self._full:
                self._full = True
                _log.error("request log does not keep up; records are lost", path=str(self.config.path))
            return
        self._keys_in += cost
        self._waiting.append(picked)

    def close(self) -> None:
        """Write what waits, and end."""
        self._closing.set()

    def join(self, seconds: float) -> None:
        """Wait for the end, so many seconds at most."""
        self._thread.join(seconds)

    # --- What follows runs in the thread. ---

    def _run(self, before: _Running | None) -> None:
        if before is not None:
            before.join(threading.TIMEOUT_MAX)  # it may write to the same path
            del before
        path = str(self.config.path)
        _log.info("requests are logged", path=path, sample=self.sample)
        closing = False
        while not closing:
            closing = self._closing.wait(FLUSH_SECONDS)
            try:
                self._flush(closing)
            except Exception:
                # Nothing is known to raise. If something does, it shall not end the log.
                _log.exception("request log: records are lost")
        _log.info("requests are no longer logged", path=path)

    def _flush(self, closing: bool) -> None:
        waiting = len(self._waiting)
        if not waiting:
            return
        written, complaint = 0, ""
        try:
            line = log.formatter(self._secret_or_read())
        except (OSError, ValueError) as error:
            complaint = f"{self.config.secret_file}: {_reason(error)}"
            for _ in range(waiting):
                self._next()
        else:
            lines = map(line, self._records(waiting, 0.0 if closing else PAUSE_SECONDS))
            while chunk := list(islice(lines, CHUNK_LINES)):
                count, failure = self._writer.write(chunk)
                written += count
                if failure is not None:
                    complaint = _reason(failure)
        self._full = False
        self._tell(written, waiting - written, complaint)

    def _records(self, count: int, pause: float) -> Iterator[Record]:
        began = time.time() - time.monotonic()
        slices = (self._keys_in - self._keys_out) // SLICE_KEYS + 1
        pause = min(pause, FLUSH_SECONDS / 2 / slices)
        keys = 0
        for _ in range(count):
            picked = self._next()
            yield Record(began + picked.at, picked.pool, picked.keys, picked.length)
            keys += _cost(picked)
            if pause and keys >= SLICE_KEYS:
                keys = 0
                time.sleep(pause)

    def _next(self) -> Picked:
        picked = self._waiting.popleft()
        self._keys_out += _cost(picked)
        return picked

    def _secret_or_read(self) -> bytes:
        if self._secret is None:
            assert self.config.secret_file is not None  # noqa: S101 - else there is a random one
            self._secret = read_secret(self.config.secret_file)
        return self._secret

    def _tell(self, written: int, lost: int, complaint: str) -> None:
        self._metrics.flushed(written, lost)
        self._lost_since += lost
        path = str(self.config.path)
        if complaint and complaint != self._complaint:
            _log.error("request log not written; records are lost", path=path, reason=complaint)
        elif self._complaint and not complaint:
            _log.info("request log written again", path=path, lost=self._lost_since)
            self._lost_since = 0
        self._complaint = complaint


def read_secret(path: Path) -> bytes:
    """The secret in a file: its bytes without the white space around them.

    Raises OSError, and ValueError if there are too few of them.
    """
    with path.open("rb") as file:
        secret = file.read(MOST_SECRET_BYTES).strip()
    log.formatter(secret)
    return secret


def _cost(picked: Picked) -> int:
    """Keys, and one for the request itself."""
    return len(picked.keys.keys) + 1


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
