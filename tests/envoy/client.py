"""HTTP/1.1 and HTTP/2 clients with one face.

httpx would do, but spends some 5 ms of processor time on a request, which is most of a test on two cores; and
its HTTP/2 cannot end a body apart from its last bytes.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, Self
from urllib.parse import urlsplit

import aiohttp
import h2.config
import h2.connection
import h2.errors
import h2.events

Http = Literal["HTTP/1.1", "HTTP/2"]
Body = bytes | Iterable[bytes] | None
"""Bytes are sent at once and with content-length; pieces apart, and without it unless a header gives it."""

TIMEOUT = 30.0
"""Seconds for one whole request."""

PAUSE = 0.005
"""Seconds before each piece of a body, so that the gateway reads headers and pieces apart. The end of the
body follows its last piece at once."""


class BrokenError(Exception):
    """The connection or the stream ended before the response did."""


class Response(ABC):
    """A response whose headers have come."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""

    @abstractmethod
    def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes in. Raises `BrokenError` if it does not come whole."""

    async def read(self) -> bytes:
        """The whole body. Raises `BrokenError` if it does not come whole."""
        return b"".join([chunk async for chunk in self.chunks()])


class Client(ABC):
    """Leaving `open` before the response's end aborts the request, as does cancelling within."""

    @abstractmethod
    def open(
        self, method: str, path: str, body: Body = None, headers: Mapping[str, str] | None = None
    ) -> AbstractAsyncContextManager[Response]:
        """Send a request. Raises `BrokenError` if no response comes."""

    @abstractmethod
    async def close(self) -> None:
        """Close every connection."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def client(url: str, http: Http, timeout: float = TIMEOUT) -> Client:
    """A client for a base URL that speaks this version and no other. `timeout`: seconds for one request."""
    return _Http1(url, timeout) if http == "HTTP/1.1" else _Http2(url, timeout)


class _Http1(Client):
    def __init__(self, url: str, timeout: float) -> None:
        self._session = aiohttp.ClientSession(
            url,
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(timeout),
            auto_decompress=False,
            trust_env=False,
        )

    @asynccontextmanager
    async def open(
        self, method: str, path: str, body: Body = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Response]:
        data = body if body is None or isinstance(body, bytes) else _pieces(body)
        try:
            async with self._session.request(method, path, data=data, headers=headers) as response:
                yield _Http1Response(response)
        except aiohttp.ClientError as error:
            raise BrokenError(str(error) or type(error).__name__) from error

    async def close(self) -> None:
        await self._session.close()


async def _pieces(body: Iterable[bytes]) -> AsyncIterator[bytes]:
    for piece in body:
        await asyncio.sleep(PAUSE)
        yield piece


class _Http1Response(Response):
    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers = {name.lower(): value for name, value in response.headers.items()}
        self._response = response

    async def chunks(self) -> AsyncIterator[bytes]:
        async for chunk in self._response.content.iter_any():
            yield chunk


class _Http2(Client):
    """One connection, with prior knowledge (RFC 9113, section 3.3)."""

    def __init__(self, url: str, timeout: float) -> None:
        self._timeout = timeout
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._host, self._port = parts.hostname, parts.port
        self._connecting = asyncio.Lock()
        self._connection: _Connection | None = None

    @asynccontextmanager
    async def open(
        self, method: str, path: str, body: Body = None, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[Response]:
        async with self._connecting:
            if self._connection is None or self._connection.closed:
                self._connection = await _Connection.to(self._host, self._port)
        connection = self._connection
        fields = {
            ":method": method,
            ":scheme": "http",
            ":authority": f"{self._host}:{self._port}",
            ":path": path,
            **({"content-length": str(len(body))} if isinstance(body, bytes) else {}),
            **(headers or {}),
        }
        async with asyncio.timeout(self._timeout):
            stream = connection.request(fields, ended=body is None)
            try:
                sending = asyncio.create_task(connection.send(stream, body))
                try:
                    await stream.begun.wait()
                    if stream.broken is not None:
                        raise BrokenError(stream.broken)
                    yield _Http2Response(connection, stream)
                finally:
                    sending.cancel()
            finally:
                connection.leave(stream)

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()


class _Stream:
    def __init__(self, number: int) -> None:
        self.number = number
        self.status = 0
        self.headers: dict[str, str] = {}
        self.begun = asyncio.Event()
        self.data: asyncio.Queue[tuple[bytes, int] | None] = asyncio.Queue()
        self.broken: str | None = None
        self.ended = False

    def end(self, broken: str | None = None) -> None:
        if not self.ended:
            self.ended, self.broken = True, broken
            self.begun.set()
            self.data.put_nowait(None)


class _Http2Response(Response):
    def __init__(self, connection: _Connection, stream: _Stream) -> None:
        self.status = stream.status
        self.headers = stream.headers
        self._connection, self._stream = connection, stream

    async def chunks(self) -> AsyncIterator[bytes]:
        while (item := await self._stream.data.get()) is not None:
            data, flow = item
            self._connection.acknowledge(self._stream, flow)
            if data:
                yield data
        if self._stream.broken is not None:
            raise BrokenError(self._stream.broken)


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(header_encoding="utf-8"))
        self._h2.initiate_connection()
        self._streams: dict[int, _Stream] = {}
        self._window = asyncio.Event()
        self.closed = False
        self._flush()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def to(cls, host: str, port: int) -> Self:
        return cls(*await asyncio.open_connection(host, port))

    def request(self, fields: dict[str, str], ended: bool) -> _Stream:
        stream = _Stream(self._h2.get_next_available_stream_id())
        self._streams[stream.number] = stream
        self._h2.send_headers(stream.number, list(fields.items()), end_stream=ended)
        self._flush()
        return stream

    async def send(self, stream: _Stream, body: Body) -> None:
        if body is None:
            return
        pieces = [body] if isinstance(body, bytes) else body
        for piece in pieces:
            if pieces is body:
                await asyncio.sleep(PAUSE)
            view = memoryview(piece)
            while view and not stream.ended:
                room = min(
                    self._h2.local_flow_control_window(stream.number), self._h2.max_outbound_frame_size
                )
                if room <= 0:
                    self._window.clear()
                    await self._window.wait()
                    continue
                self._h2.send_data(stream.number, bytes(view[:room]))
                view = view[room:]
                self._flush()
                await self._writer.drain()
        if not stream.ended:
            self._h2.end_stream(stream.number)
            self._flush()

    def acknowledge(self, stream: _Stream, flow: int) -> None:
        if flow and not self.closed:
            self._h2.acknowledge_received_data(flow, stream.number)
            self._flush()

    def leave(self, stream: _Stream) -> None:
        del self._streams[stream.number]
        # What was not read must not shrink the connection's window for the others.
        while not stream.data.empty():
            if (item := stream.data.get_nowait()) is not None:
                self.acknowledge(stream, item[1])
        if not stream.ended and not self.closed:
            stream.ended = True
            self._h2.reset_stream(stream.number, h2.errors.ErrorCodes.CANCEL)
            self._flush()

    async def close(self) -> None:
        self._reading.cancel()
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write(self._h2.data_to_send())

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(65536):
                for event in self._h2.receive_data(data):
                    self._take(event)
                self._flush()
        except ConnectionError:
            pass
        finally:
            self.closed = True
            for stream in self._streams.values():
                stream.end("the connection was closed")

    def _take(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.WindowUpdated | h2.events.RemoteSettingsChanged):
            self._window.set()
            return
        stream = self._streams.get(getattr(event, "stream_id", None) or 0)
        match event:
            case h2.events.DataReceived():
                if stream is None:
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                else:
                    stream.data.put_nowait((event.data, event.flow_controlled_length))
            case h2.events.ResponseReceived() if stream is not None:
                stream.headers = {str(name): str(value) for name, value in event.headers}
                stream.status = int(stream.headers.pop(":status"))
                stream.begun.set()
            case h2.events.StreamEnded() if stream is not None:
                stream.end()
            case h2.events.StreamReset() if stream is not None:
                # A server that has answered may reset with NO_ERROR what it does not want to read any more.
                answered = stream.status and event.error_code == h2.errors.ErrorCodes.NO_ERROR
                stream.end(None if answered else f"the stream was reset: {event.error_code!r}")
            case h2.events.ConnectionTerminated():
                self.closed = True
            case _:
                pass
        self._window.set()
