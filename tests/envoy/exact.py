"""One request on a connection of its own, byte by byte as the test says, trailers and upgrades included."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import h2.config
import h2.connection
import h2.events
import h2.settings
import h11

from tests.envoy.client import BrokenError, Http

Pieces = Iterable[bytes] | AsyncIterable[bytes]


SEGMENT = 16_384
"""Bytes up to which a piece leaves together with what is before and after it, as clients mostly send it."""


async def slowly(pieces: Iterable[bytes], pause: float) -> AsyncIterator[bytes]:
    """Each piece after a pause in seconds, so that the gateway reads it apart."""
    for piece in pieces:
        await asyncio.sleep(pause)
        yield piece


async def _each(pieces: Pieces | None) -> AsyncIterator[bytes]:
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
    else:
        for piece in pieces or ():
            yield piece


@dataclass(slots=True)
class Answer:
    """A whole response."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    trailers: dict[str, str] = field(default_factory=dict)


async def send(
    address: str,
    http: Http,
    method: str,
    path: str,
    *,
    headers: Mapping[str, str] | None = None,
    pieces: Pieces | None = None,
    trailers: Mapping[str, str] | None = None,
) -> Answer:
    """Send a request and read all of its response.

    `pieces`: the body, each piece in a frame or chunk of its own; None for no body at all. The end follows
    the last piece at once. Raises `BrokenError` if no whole response comes.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    speak = _http1 if http == "HTTP/1.1" else _http2
    try:
        return await speak(reader, writer, method, path, dict(headers or {}), pieces, dict(trailers or {}))
    except (ConnectionError, h11.RemoteProtocolError) as error:
        raise BrokenError(str(error) or type(error).__name__) from error
    finally:
        writer.close()


async def _http1(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    method: str,
    path: str,
    headers: dict[str, str],
    pieces: Pieces | None,
    trailers: dict[str, str],
) -> Answer:
    connection = h11.Connection(h11.CLIENT)
    fields = {"host": "test", **headers}
    if pieces is not None and "content-length" not in fields:
        fields["transfer-encoding"] = "chunked"

    async def write() -> None:
        head = connection.send(h11.Request(method=method, target=path, headers=list(fields.items()))) or b""
        if isinstance(pieces, AsyncIterable):
            writer.write(head)
            head = b""
        async for piece in _each(pieces):
            # Headers and the first piece in one segment, as clients mostly send them.
            writer.write(head + (connection.send(h11.Data(data=piece)) or b""))
            head = b""
            await writer.drain()
        end = connection.send(h11.EndOfMessage(headers=list(trailers.items()))) or b""
        writer.write(head + end)
        await writer.drain()

    writing = asyncio.create_task(write())
    answer = Answer()
    try:
        while True:
            event = connection.next_event()
            match event:
                case h11.NEED_DATA:
                    connection.receive_data(await reader.read(65_536))
                case h11.Response():
                    answer.status = event.status_code
                    answer.headers = {name.decode(): value.decode() for name, value in event.headers}
                case h11.Data():
                    answer.body += event.data
                case h11.EndOfMessage():
                    answer.trailers = {name.decode(): value.decode() for name, value in event.headers}
                    return answer
                case _:
                    raise BrokenError(f"unexpected {event!r}")
    finally:
        writing.cancel()


async def _http2(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    method: str,
    path: str,
    headers: dict[str, str],
    pieces: Pieces | None,
    trailers: dict[str, str],
) -> Answer:
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    connection.initiate_connection()
    fields = {":method": method, ":scheme": "http", ":authority": "test", ":path": path, **headers}
    window = asyncio.Event()
    answer = Answer()
    over = False

    async def write() -> None:
        async for piece in _each(pieces):
            rest = memoryview(piece)
            while rest and not over:
                room = min(connection.local_flow_control_window(1), connection.max_outbound_frame_size)
                if room <= 0:
                    writer.write(connection.data_to_send())
                    window.clear()
                    await window.wait()
                    continue
                connection.send_data(1, bytes(rest[:room]))
                rest = rest[room:]
                if slow or len(piece) > SEGMENT:
                    writer.write(connection.data_to_send())
                    await writer.drain()
        if over:
            return
        if trailers:
            connection.send_headers(1, list(trailers.items()), end_stream=True)
        else:
            connection.end_stream(1)
        writer.write(connection.data_to_send())

    bare = pieces is None and not trailers
    slow = isinstance(pieces, AsyncIterable)
    connection.send_headers(1, list(fields.items()), end_stream=bare)
    if bare or slow:
        writer.write(connection.data_to_send())
    writing = None if bare else asyncio.create_task(write())
    try:
        while data := await reader.read(65_536):
            for event in connection.receive_data(data):
                match event:
                    case h2.events.ResponseReceived():
                        answer.headers = {str(name): str(value) for name, value in event.headers}
                        answer.status = int(answer.headers.pop(":status"))
                    case h2.events.DataReceived():
                        answer.body += event.data
                        connection.acknowledge_received_data(event.flow_controlled_length, 1)
                    case h2.events.TrailersReceived():
                        answer.trailers = {str(name): str(value) for name, value in event.headers}
                    case h2.events.StreamEnded():
                        over = True
                    case h2.events.StreamReset():
                        # A server that has answered may reset with NO_ERROR what it does not want to read.
                        if over or (answer.status and event.error_code == 0):
                            return answer
                        raise BrokenError(f"the stream was reset: {event.error_code!r}")
                    case _:
                        pass
            window.set()
            writer.write(connection.data_to_send())
            if over:
                return answer
        raise BrokenError("the connection was closed")
    finally:
        over = True
        if writing is not None:
            writing.cancel()


class Tunnel(Protocol):
    """What an upgraded connection carries: bytes both ways."""

    async def write(self, data: bytes) -> None:
        """Send bytes."""

    async def read_exactly(self, size: int) -> bytes:
        """Wait for so many bytes."""


class _Tunnel1:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def read_exactly(self, size: int) -> bytes:
        return await self._reader.readexactly(size)


class _Tunnel2:
    def __init__(
        self,
        connection: h2.connection.H2Connection,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        read: bytearray,
    ) -> None:
        self._connection, self._reader, self._writer, self._read = connection, reader, writer, read

    async def write(self, data: bytes) -> None:
        # No flow control: a test writes less than the window that each stream begins with.
        for at in range(0, len(data), self._connection.max_outbound_frame_size):
            self._connection.send_data(1, data[at : at + self._connection.max_outbound_frame_size])
        self._writer.write(self._connection.data_to_send())
        await self._writer.drain()

    async def read_exactly(self, size: int) -> bytes:
        while len(self._read) < size:
            data = await self._reader.read(65_536)
            if not data:
                raise BrokenError("the connection was closed")
            for event in self._connection.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    self._read += event.data
                    self._connection.acknowledge_received_data(event.flow_controlled_length, 1)
                elif isinstance(event, h2.events.StreamReset):
                    raise BrokenError(f"the stream was reset: {event.error_code!r}")
            self._writer.write(self._connection.data_to_send())
        data, self._read[:] = bytes(self._read[:size]), self._read[size:]
        return data


@asynccontextmanager
async def upgraded(address: str, http: Http, path: str) -> AsyncIterator[Tunnel]:
    """A websocket's connection past its handshake: Upgrade over HTTP/1.1, extended CONNECT over HTTP/2 (RFC
    8441). Raises `BrokenError` if the upgrade is not accepted.
    """
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield await (_upgrade1 if http == "HTTP/1.1" else _upgrade2)(reader, writer, path)
    finally:
        writer.close()


async def _upgrade1(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> Tunnel:
    writer.write(
        f"GET {path} HTTP/1.1\r\nhost: test\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
        "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-version: 13\r\n\r\n".encode()
    )
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 101 " not in head.splitlines()[0]:
        raise BrokenError(head.decode())
    return _Tunnel1(reader, writer)


async def _upgrade2(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, path: str) -> Tunnel:
    connection = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
    connection.initiate_connection()
    fields = {
        ":method": "CONNECT",
        ":protocol": "websocket",
        ":scheme": "http",
        ":authority": "test",
        ":path": path,
        "sec-websocket-version": "13",
    }
    read = bytearray()
    asked = False
    writer.write(connection.data_to_send())
    while data := await reader.read(65_536):
        for event in connection.receive_data(data):
            match event:
                case h2.events.RemoteSettingsChanged() if not asked:
                    asked = True
                    connection.send_headers(1, list(fields.items()))
                case h2.events.ResponseReceived():
                    status = {str(name): str(value) for name, value in event.headers}[":status"]
                    if status != "200":
                        raise BrokenError(f"answered {status}")
                    return _Tunnel2(connection, reader, writer, read)
                case h2.events.StreamReset():
                    raise BrokenError(f"the stream was reset: {event.error_code!r}")
                case _:
                    pass
        writer.write(connection.data_to_send())
    raise BrokenError("the connection was closed")
