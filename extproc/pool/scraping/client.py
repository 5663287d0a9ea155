"""GET over connections that are kept: what reading a metrics page takes, and no more.

A general HTTP client spends most of its time on what is not needed here, in the event loop that also picks
endpoints. With this one a scrape takes two thirds of the CPU that it takes with aiohttp, for which
`python -m bench.scrape` has figures. Responses are parsed by httptools, which is llhttp, Node.js' parser.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from typing import NamedTuple

import httptools

MAX_HEAD_BYTES = 64 * 1024
"""A longer head of a response is refused."""


class NoConnectionError(Exception):
    """The other side cannot be connected to; the text says why, without naming it."""


class NoResponseError(Exception):
    """The other side did not answer in HTTP, or not to the end."""


class Response(NamedTuple):
    """A response that came whole."""

    status: int
    encoding: str
    """Its Content-Encoding, empty if there is none."""
    body: bytes | None
    """As it came; None if it is longer than was asked for."""


class Peer:
    """One server: a connection that is opened when it is needed, and kept. One request at a time."""

    def __init__(
        self, host: str, port: int, tls: ssl.SSLContext | None = None, server_name: str | None = None
    ) -> None:
        """`host` is an IP address without brackets. With `tls`, the certificate must be for `server_name`,
        or for `host` if that is None.
        """
        self._host = host
        self._port = port
        self._tls = tls
        self._server_name = server_name
        self._connection: _Connection | None = None
        self._busy = False
        self._retired = False

    async def get(self, request: bytes, most: int) -> Response:
        """Send `request`, which is a whole one, and take a response whose body has at most `most` bytes.

        Raises `NoConnectionError`, ssl.SSLError and `NoResponseError`. When it is cancelled the connection
        is closed.
        """
        self._busy = True
        try:
            kept = self._connection
            if kept is not None and kept.usable:
                try:
                    return await kept.ask(request, most)
                except NoResponseError:
                    # Servers close idle connections, and that may cross a request. GET may be asked again.
                    if kept.answered:
                        raise
            self._connection = await self._connect()
            return await self._connection.ask(request, most)
        finally:
            self._busy = False
            if self._connection is not None and (self._retired or not self._connection.usable):
                self._connection.close()
                self._connection = None

    def retire(self) -> None:
        """Close the connection, after the response that is under way."""
        self._retired = True
        if not self._busy and self._connection is not None:
            self._connection.close()
            self._connection = None

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        name = None if self._tls is None else self._server_name or self._host
        try:
            _, connection = await loop.create_connection(
                _Connection, self._host, self._port, ssl=self._tls, server_hostname=name
            )
        except ssl.SSLError:
            raise
        except OSError as error:
            # Not the error's own words, which name the address.
            why = os.strerror(error.errno) if error.errno else type(error).__name__
            raise NoConnectionError(why) from error
        return connection


class _Connection(asyncio.Protocol):
    """One connection, and the response that is awaited on it. The methods `on_…` are httptools'."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._waiting: asyncio.Future[Response] | None = None
        self._most = 0
        self._size = 0
        self._head_bytes = 0
        self._parts: list[bytes] = []
        self._in_body = False
        self._framed = False
        """Whether the response says where it ends."""
        self._encoding = ""
        self._keep = True
        self.answered = False
        """Something came back since the last request."""

    @property
    def usable(self) -> bool:
        """Another request may be sent."""
        return self._keep and self._transport is not None and not self._transport.is_closing()

    async def ask(self, request: bytes, most: int) -> Response:
        """Send a request and await its response. Raises `NoResponseError`."""
        assert self._transport is not None  # noqa: S101 - made by create_connection
        self._keep = self.answered = False
        self._most, self._size, self._head_bytes = most, 0, 0
        waiting: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._waiting = waiting
        self._transport.write(request)
        return await waiting

    def close(self) -> None:
        """Close at once."""
        self._keep = False
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio's ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """As in asyncio.Protocol."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - what create_connection makes
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """As in asyncio.Protocol."""
        if self._waiting is None:
            self.close()  # nobody asked
            return
        self.answered = True
        if not self._in_body:
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._fail("not HTTP")
            return
        if self._waiting is not None and not self._in_body and self._head_bytes > MAX_HEAD_BYTES:
            self._fail("its head does not end")

    def eof_received(self) -> None:
        """As in asyncio.Protocol; the transport closes itself."""
        if self._in_body and not self._framed:
            self._complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """As in asyncio.Protocol."""
        self._fail("the connection closed")

    # --- httptools' ---

    def on_message_begin(self) -> None:
        """A response begins, perhaps an interim one, or one that nobody asked for."""
        if self._waiting is None:
            self.close()
        self._parts, self._in_body, self._framed, self._encoding = [], False, False, ""

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or after the body a trailer."""
        if self._in_body:
            return
        match name.lower():
            case b"content-length" | b"transfer-encoding":
                self._framed = True
            case b"content-encoding":
                self._encoding = value.decode("latin-1").strip().lower()

    def on_headers_complete(self) -> None:
        """The body comes next."""
        self._in_body = True

    def on_body(self, body: bytes) -> None:
        """Part of the body."""
        self._size += len(body)
        if self._size > self._most:
            self._finish(None)
            self.close()
        else:
            self._parts.append(body)

    def on_message_complete(self) -> None:
        """The response ends here. After an interim one (100 to 199) comes another."""
        if self._waiting is not None and self._parser.get_status_code() >= 200:
            self._keep = self._parser.should_keep_alive()
            self._complete()

    # --- ---

    def _complete(self) -> None:
        parts = self._parts
        self._finish(parts[0] if len(parts) == 1 else b"".join(parts))

    def _finish(self, body: bytes | None) -> None:
        waiting, self._waiting, self._parts, self._in_body = self._waiting, None, [], False
        if waiting is not None and not waiting.done():
            waiting.set_result(Response(self._parser.get_status_code(), self._encoding, body))

    def _fail(self, why: str) -> None:
        waiting, self._waiting, self._parts, self._in_body = self._waiting, None, [], False
        if waiting is not None and not waiting.done():
            waiting.set_exception(NoResponseError(why))
        self.close()
