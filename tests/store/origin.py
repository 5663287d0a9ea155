"""A real HTTP server with ranges over a directory, and the source that reads from it.

The server counts what it sends, and misbehaves on demand.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import random
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote, urlsplit

from cacheprep.failures import Failure, Reason
from cacheprep.listing import Digest, File, Listing
from cacheprep.sources import Source
from cacheprep.sources.source import Body
from tests.sources.fault_proxy import DRIP_S, Fault, flipped

CHUNK = 1 << 16


class Request(NamedTuple):
    """A range that was asked for, and how many requests there were before."""

    number: int
    name: str
    start: int
    end: int


class Origin:
    """The server. `fault` is asked for each request; `sent` counts bytes of content by file."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.fault: Callable[[Request], Fault | None] = lambda _: None
        self.options: tuple[str, ...] = ()
        """Of the command line, beside the URL."""
        self.sent: dict[str, int] = {}
        self.requests = 0
        self.hold_after: int | None = None
        """Later requests than this wait until `release`."""
        self._released = threading.Event()
        self.etags: dict[str, str] = {}
        """What a file's version is now, where it is not its first one."""
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def url(self) -> str:
        return f"origin://127.0.0.1:{self._server.server_address[1]}"

    @property
    def total_sent(self) -> int:
        return sum(self.sent.values())

    def __enter__(self) -> Origin:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def release(self) -> None:
        """Let the requests that are held go on, and hold none any more."""
        self.hold_after = None
        self._released.set()

    def forget(self) -> None:
        """Count from zero."""
        with self._lock:
            self.sent.clear()
            self.requests = 0

    def source(self) -> Source:
        """What reads from it, in this process."""
        return OriginSource(self.url)

    def replace(self, name: str) -> None:
        """Put another version in a file's place."""
        self.etags[name] = "v2"

    def listing(self) -> Listing:
        """What is there, with its digests."""
        files = []
        for path in sorted(self.directory.rglob("*")):
            if path.is_file():
                content = path.read_bytes()
                digest = Digest("sha256", hashlib.sha256(content).hexdigest())
                files.append(File(str(path.relative_to(self.directory)), len(content), (digest,), "v1"))
        return Listing(self.url, "", tuple(files))

    def begin(self, name: str, start: int, end: int) -> Request:
        with self._lock:
            self.requests += 1
            request = Request(self.requests, name, start, end)
        if self.hold_after is not None and request.number > self.hold_after:
            self._released.wait()
        return request

    def count(self, name: str, amount: int) -> None:
        with self._lock:
            self.sent[name] = self.sent.get(name, 0) + amount

    def wait(self, seconds: float) -> bool:
        """Whether the server ended meanwhile."""
        return self._ended.wait(seconds)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def handle_error(self, *_: object) -> None:
        """A client that was killed is what these tests are about."""


def _handler(origin: Origin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            name = unquote(self.path[1:])
            if not name:
                body = origin.listing().to_json()
                self._head(200, len(body))
                self.wfile.write(body)
                return
            start, end = (int(number) for number in self.headers["Range"].removeprefix("bytes=").split("-"))
            end += 1
            fault = origin.fault(origin.begin(name, start, end)) or Fault(after=end - start)
            path = origin.directory / name
            if fault.status or not path.exists():
                self._head(fault.status or 404, 0)
            elif self.headers["If-Match"] != origin.etags.get(name, "v1"):
                self._head(412, 0)
            else:
                self._head(206, end - start)
                with contextlib.suppress(OSError):
                    self._send(name, path, start, end, fault)

        def _send(self, name: str, path: Path, start: int, end: int, fault: Fault) -> None:
            last = end - start if fault.flip else min(end - start, fault.after)
            with path.open("rb") as file:
                file.seek(start)
                for done in range(0, last, CHUNK):
                    chunk = file.read(min(CHUNK, last - done))
                    self.wfile.write(flipped(chunk, fault.after - done) if fault.flip else chunk)
                    origin.count(name, len(chunk))
                if rest := file.read(end - start - last):
                    self._misbehave(fault, rest)

        def _misbehave(self, fault: Fault, rest: bytes) -> None:
            self.close_connection = True
            if fault.reset:
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
            elif fault.stall:
                origin.wait(3600)
            elif fault.drip:
                for byte in rest:
                    if origin.wait(DRIP_S):
                        return
                    self.wfile.write(bytes([byte]))

        def _head(self, status: int, length: int) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(length))
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    return Handler


class OriginSource:
    """Reads from an `Origin` as the real sources read from theirs."""

    def __init__(self, url: str, timeout_s: float = 20.0) -> None:
        self.url = url
        self._address = urlsplit(url).netloc
        self._timeout = timeout_s

    def resolve(self) -> Listing:
        connection = http.client.HTTPConnection(self._address, timeout=self._timeout)
        connection.request("GET", "/")
        return Listing.from_json(connection.getresponse().read())

    @contextmanager
    def open(self, file: File, start: int, end: int) -> Iterator[Body]:
        connection = http.client.HTTPConnection(self._address, timeout=self._timeout)
        try:
            headers = {"Range": f"bytes={start}-{end - 1}", "If-Match": file.version}
            connection.request("GET", "/" + quote(file.name), headers=headers)
            answer = connection.getresponse()
            if answer.status != 206:
                raise Failure(
                    _REASONS.get(answer.status, Reason.SOURCE_UNAVAILABLE), f"{file.name}: {answer.status}"
                )
            yield _Answer(answer)
        except (OSError, http.client.HTTPException) as error:
            raise Failure(Reason.SOURCE_UNAVAILABLE, f"{file.name}: {error!r}") from error
        finally:
            connection.close()

    def close(self) -> None:
        return


class _Answer:
    """A body as it comes, in whatever pieces."""

    digests: tuple[Digest, ...] = ()

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        self._answer = answer

    def readinto(self, buffer: memoryview, /) -> int:
        came = self._answer.read1(min(CHUNK, len(buffer)))
        buffer[: len(came)] = came
        return len(came)


_REASONS = {
    401: Reason.ACCESS_DENIED,
    403: Reason.ACCESS_DENIED,
    404: Reason.SOURCE_CHANGED,
    412: Reason.SOURCE_CHANGED,
}


def make_model(directory: Path, seed: int = 1, scale: int = 1, small: int = 12) -> None:
    """Files as of a model: large, small, empty, in a directory; about 9 MB times `scale`."""
    chance = random.Random(seed)
    sizes = {
        "model-00001.safetensors": 4_000_003 * scale,
        "model-00002.safetensors": 3_000_000 * scale,
        "model-00003.safetensors": 1_500_001 * scale,
        "original/params.bin": 300_000 * scale,
        **{f"small/{number}.json": 1000 + number for number in range(small)},
        "empty": 0,
    }
    for name, size in sizes.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chance.randbytes(size))


def same(directory: Path, other: Path) -> bool:
    """Whether two directories hold the same files with the same content."""
    one, two = (
        {str(path.relative_to(at)): path.read_bytes() for path in at.rglob("*") if path.is_file()}
        for at in (directory, other)
    )
    return one == two


def wait_until(true: Callable[[], bool], within_s: float = 20.0) -> None:
    """Wait for an event; fails if it does not come."""
    end = time.monotonic() + within_s
    while not true():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.005)
