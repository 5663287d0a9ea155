"""Requests and responses of HTTP/1.1 over real sockets, held against http.client."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3
from hypothesis import given, settings
from hypothesis import strategies as st

from cacheprep.failures import Failure, Reason
from cacheprep.sources.body import ResponseBody
from cacheprep.sources.http1 import pools
from cacheprep.sources.web import Web
from tests.certificates import Authority
from tests.sources.reading import rest

NAMES = ["Content-Length", "Transfer-Encoding", "Connection", "ETag", "x-amz-checksum-sha256", "etag"]
VALUES = ["3", "03", " 3 ", "3, 3", "-3", "", "chunked", "close", "keep-alive", '"a:b"', "\t x \t", "\xe4"]
ENDS = ["\r\n", "\n", "\r\n folded\r\n"]
lines = st.tuples(st.sampled_from(NAMES), st.sampled_from([":", ": ", " : ", ""]), st.sampled_from(VALUES))
heads = st.tuples(
    st.sampled_from(
        [
            "HTTP/1.1 200 OK",
            "HTTP/1.1 206",
            "HTTP/1.1 304 Not Modified",
            "HTTP/1.1 503 Slow Down",
            "HTTP/1.0 200 OK",
            "nothing",
        ]
    ),
    st.lists(st.tuples(lines.map("".join), st.sampled_from(ENDS)), max_size=5),
)


class Server:
    """Answers every request on a connection with the same bytes, in pieces; then closes it if it should."""

    def __init__(
        self, pieces: list[bytes], *, closes: bool = False, tls: ssl.SSLContext | None = None
    ) -> None:
        self._pieces, self._closes = pieces, closes
        self._listening = socket.create_server(("127.0.0.1", 0))
        scheme = "https" if tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self._listening.getsockname()[1]}"
        if tls:
            self._listening = tls.wrap_socket(self._listening, server_side=True)
        self.requests: list[bytes] = []
        self.connections = 0
        self._open: socket.socket | None = None
        self.ended = threading.Event()
        """A connection has come to its end."""

    @contextmanager
    def running(self) -> Iterator[Server]:
        thread = threading.Thread(target=self._serve)
        thread.start()
        try:
            yield self
        finally:
            self._listening.shutdown(socket.SHUT_RDWR)
            self._listening.close()
            with contextlib.suppress(AttributeError, OSError):
                self._open.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
            thread.join()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.connections += 1
            self._open = connection
            with contextlib.suppress(OSError), connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                while request := self._request(connection):
                    self.requests.append(request)
                    for piece in self._pieces:
                        connection.sendall(piece)
                    if self._closes:
                        break
            self.ended.set()

    @staticmethod
    def _request(connection: socket.socket) -> bytes:
        request = b""
        while b"\r\n\r\n" not in request:
            more = connection.recv(65536)
            if not more:
                return b""
            request += more
        return request


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> tuple[ssl.SSLContext, str]:
    """What a server has, and a file of who is trusted by clients."""
    directory: Path = tmp_path_factory.mktemp("tls")
    authority = Authority()
    pair = authority.issue(("127.0.0.1",))
    for name, content in (("ca", authority.pem), ("certificate", pair.certificate), ("key", pair.key)):
        (directory / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "certificate", directory / "key")
    return context, str(directory / "ca")


def answer(pool: urllib3.PoolManager, url: str, method: str = "GET") -> tuple[object, ...]:
    """Status, fields and body, or what went wrong."""
    try:
        response = pool.urlopen(
            method, url, retries=False, preload_content=False, decode_content=False, timeout=5
        )
        # White space around a value is no part of it (RFC 9112, section 5.1); http.client keeps some.
        fields = [(name.lower(), value.strip(" \t")) for name, value in response.headers.items()]
        return response.status, response.version, fields, response.read()
    except urllib3.exceptions.HTTPError as error:
        return (type(error),)


@settings(deadline=None, max_examples=150)
@given(heads, st.sampled_from(["GET", "HEAD"]), st.sampled_from([b"", b"abc", b"3\r\nabc\r\n0\r\n\r\n"]))
def test_a_response_is_read_as_http_client_reads_it(
    head: tuple[str, list[tuple[str, str]]], method: str, body: bytes
) -> None:
    first, fields = head
    text = first + "\r\n" + "".join(line + end for line, end in fields) + "\r\n"
    with Server([text.encode("iso-8859-1") + body], closes=True).running() as server:
        ours, usual = pools(1, None), urllib3.PoolManager(maxsize=1)
        assert answer(ours, server.url, method) == answer(usual, server.url, method)


@pytest.mark.parametrize("cut", [1, 10, 20, 40, 45, 60])
def test_a_header_that_comes_in_pieces_is_read_too(cut: int) -> None:
    whole = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nETag: a\r\n\r\nabc"
    with Server([whole[:cut], whole[cut:]]).running() as server:
        pool = pools(1, None)
        for _ in range(3):
            assert answer(pool, server.url) == (200, 11, [("content-length", "3"), ("etag", "a")], b"abc")
        pool.clear()
        assert server.connections == 1


def test_what_announces_more_is_waited_for() -> None:
    late = [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"]
    with Server(late).running() as server:
        assert answer(pools(1, None), server.url)[3] == b"abc"


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified"])
def test_a_body_that_never_comes_is_not_waited_for(status: bytes) -> None:
    # RFC 9110, section 8.6: a 304 may say the length that a 200 would have.
    with Server([b"HTTP/1.1 " + status + b"\r\nContent-Length: 3\r\n\r\n"]).running() as server:
        assert answer(pools(1, None), server.url)[3] == b""


@pytest.mark.parametrize(
    ("head", "connections"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n", 1),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nConnection: close\r\n\r\n", 3),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n", 3),
    ],
)
def test_a_connection_is_used_again_unless_the_server_closes_it(head: bytes, connections: int) -> None:
    with Server([head + b"abc"], closes=connections > 1).running() as server:
        web = Web(5)
        for _ in range(3):
            with web.get(server.url, {}, "file") as response:
                assert response.read() == b"abc"
        web.close()
        assert server.connections == connections


def test_a_connection_that_the_server_closed_meanwhile_costs_no_failure() -> None:
    # Closed after each response, and nothing says so before: often it looks open when it is used again.
    with Server([b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"], closes=True).running() as server:
        web = Web(5)
        for _ in range(200):
            with web.get(server.url, {}, "file") as response:
                assert response.read() == b"abc"
        web.close()
        assert server.connections == 200


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_one_that_is_closed_before_its_first_response_does(
    scheme: str, tls: tuple[ssl.SSLContext, str]
) -> None:
    with Server([], closes=True, tls=tls[0] if scheme == "https" else None).running() as server:
        web = Web(5, tls[1])
        with pytest.raises(Failure, match="broke off"), web.get(server.url, {}, "file"):
            pass
        web.close()
        assert len(server.requests) == 1


def test_over_tls_it_is_the_same(tls: tuple[ssl.SSLContext, str]) -> None:
    body = bytes(range(256)) * 1000
    head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body)
    with Server([head[:20], head[20:] + body], tls=tls[0]).running() as server:
        web = Web(5, tls[1])
        for _ in range(3):
            with web.get(server.url, {}, "file") as response:
                assert rest(ResponseBody(response, len(body), "file")) == body
        web.close()
        assert server.connections == 1


def test_an_authority_that_is_not_trusted_is_told(tls: tuple[ssl.SSLContext, str]) -> None:
    with Server([], tls=tls[0]).running() as server:
        web = Web(5)
        with pytest.raises(Failure, match="SSL"), web.get(server.url, {}, "file"):
            pass
        web.close()


def test_connections_that_are_idle_end_with_close() -> None:
    with Server([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]).running() as server:
        web = Web(5)
        with web.get(server.url, {}, "file"):
            pass
        web.close()
        assert server.ended.wait(5)


def test_a_request_is_its_target_the_host_and_the_headers_that_are_given() -> None:
    with Server([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]).running() as server:
        web = Web(5)
        with web.get(f"{server.url}/a%20b?c=d", {"If-Match": '"x"'}, "file"):
            pass
        web.close()
    first, *rest = server.requests[0].decode().split("\r\n")
    assert first == "GET /a%20b?c=d HTTP/1.1"
    host = server.url.removeprefix("http://")
    assert {f"Host: {host}", 'If-Match: "x"', "Accept-Encoding: identity"} < set(rest)
    assert sum(line.startswith("Host:") for line in rest) == 1


@pytest.mark.parametrize("value", ["a\r\nX-Other: b", "a\nb", "a\rb", "\u2028"])
def test_a_header_cannot_smuggle_another(value: str) -> None:
    with Server([b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"]).running() as server:
        web = Web(5)
        with pytest.raises(Failure) as caught, web.get(server.url, {"If-Match": value}, "file"):
            pass
        web.close()
        assert caught.value.reason is Reason.SOURCE_UNAVAILABLE
        assert server.requests == []


def test_http_client_still_has_what_is_read_from_it() -> None:
    """The attributes of a response that are set beside its own `begin`."""
    left, right = socket.socketpair()
    with left, right:
        right.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
        usual = http.client.HTTPResponse(left, method="GET")
        usual.begin()
        with usual:
            assert {
                "status",
                "code",
                "reason",
                "version",
                "headers",
                "msg",
                "chunked",
                "length",
                "will_close",
            } < set(vars(usual))
