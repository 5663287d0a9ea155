"""A TCP proxy before a real HTTP server that spoils some of its responses, and counts what it passes on."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from urllib.parse import urlsplit

HEAD_END = b"\r\n\r\n"
DRIP_S = 0.05


@dataclass(frozen=True, slots=True)
class Fault:
    """What is done to one response. `after` counts bytes of its body."""

    status: int = 0
    """Answer with this status and do not ask the server."""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    cut: bool = False
    """Close the connection after so many bytes."""
    reset: bool = False
    """Reset it then."""
    stall: bool = False
    """Send nothing more then, until the client goes."""
    drip: bool = False
    """Send what is left byte by byte, `DRIP_S` apart."""
    flip: bool = False
    """Change a bit of the byte that follows, and nothing else."""
    silent: bool = False
    """Send nothing at all."""
    after: int = 0


EXPIRED = Fault(
    status=400,
    headers={"Content-Type": "application/xml"},
    body=b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>",
)
"""What S3 says of credentials that were good once."""


class FaultProxy:
    """Serves one request per connection. `choose` gets the head of each request and says what is done to its
    response; at first it uses up `faults` for requests that contain `only`."""

    def __init__(self, server: str) -> None:
        parts = urlsplit(server)
        assert parts.hostname
        assert parts.port
        self._server = (parts.hostname, parts.port)
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self.faults: deque[Fault] = deque()
        self.only = b"\r\nRange: bytes="
        self.choose: Callable[[bytes], Fault | None] = self._next
        self.requests: list[bytes] = []
        self.passed: Callable[[bytes, int], None] = lambda _head, _count: None
        """Told of each request's head how many bytes of its response's body were passed on."""
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._closed = threading.Event()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._socket.accept()
            except OSError:
                return
            if self._closed.is_set():
                client.close()
                return
            self._open.add(client)
            thread = threading.Thread(target=self._serve, args=(client,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, client: socket.socket) -> None:
        with contextlib.suppress(OSError), client:
            head = b""
            while HEAD_END not in head:
                more = client.recv(65536)
                if not more:
                    return
                head += more
            self.requests.append(head)
            fault = self.choose(head)
            if fault and fault.silent:
                client.recv(1)
            elif fault and fault.status:
                client.sendall(_response(fault))
            else:
                self._relay(client, head, fault)
        self._open.discard(client)

    def _relay(self, client: socket.socket, head: bytes, fault: Fault | None) -> None:
        with socket.create_connection(self._server, 10) as server:
            lines = [line for line in head.split(b"\r\n") if not line.lower().startswith(b"connection:")]
            server.sendall(lines[0] + b"\r\nConnection: close\r\n" + b"\r\n".join(lines[1:]))
            answer = b""
            while HEAD_END not in answer:
                more = server.recv(65536)
                if not more:
                    return
                answer += more
            start = answer.index(HEAD_END) + len(HEAD_END)
            client.sendall(answer[:start])
            done, chunk = 0, answer[start:]
            while chunk or (chunk := server.recv(65536)):
                whole = len(chunk)
                if fault is not None and fault.flip:
                    chunk = flipped(chunk, fault.after - done)
                elif fault is not None:
                    whole = min(whole, fault.after - done)
                client.sendall(chunk[:whole])
                done += whole
                self.passed(head, whole)
                if fault is not None and whole < len(chunk):
                    self._misbehave(client, fault, chunk[whole:])
                    return
                chunk = b""

    def _misbehave(self, client: socket.socket, fault: Fault, rest: bytes) -> None:
        if fault.stall:
            client.recv(1)
        elif fault.drip:
            for byte in rest:
                if self._closed.wait(DRIP_S):
                    return
                client.sendall(bytes([byte]))
        elif fault.reset:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def _next(self, head: bytes) -> Fault | None:
        with contextlib.suppress(IndexError):
            if self.only.lower() in head.lower():
                return self.faults.popleft()
        return None

    @classmethod
    @contextlib.contextmanager
    def before(cls, server: str) -> Iterator[FaultProxy]:
        """Run one before the server at this URL."""
        proxy = cls(server)
        accepting = threading.Thread(target=proxy._accept)
        accepting.start()
        try:
            yield proxy
        finally:
            proxy._closed.set()
            with contextlib.suppress(OSError):
                socket.create_connection(proxy._socket.getsockname(), 1).close()
            proxy._socket.close()
            accepting.join(5)
            for client in list(proxy._open):
                with contextlib.suppress(OSError):
                    client.shutdown(socket.SHUT_RDWR)
            for thread in proxy._threads:
                thread.join(5)


def flipped(chunk: bytes, at: int) -> bytes:
    """The chunk with one bit changed, if it has such a byte."""
    if not 0 <= at < len(chunk):
        return chunk
    return chunk[:at] + bytes([chunk[at] ^ 4]) + chunk[at + 1 :]


def _response(fault: Fault) -> bytes:
    headers = {"Content-Length": str(len(fault.body)), "Connection": "close", **fault.headers}
    lines = [f"HTTP/1.1 {fault.status} Fault", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join(lines).encode() + HEAD_END + fault.body
