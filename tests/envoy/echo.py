"""An engine that gives back what it got: any body, trailers of both directions, upgraded connections.

The simulated engines speak HTTP/1.1 without trailers, as vLLM does. What gateways pass besides that is seen
only by a server which reads and writes it: HTTP/1.1 with chunked trailers, HTTP/2, and raw bytes after an
upgrade, all on one port.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events
import h11

from tests.envoy.process import HOST

TRAILER = "x-echo-trailer"
"""Sent in the request's trailers, and given back with the same value in the response's."""

PIECE = 16_384
"""Bytes of one piece of a response's body."""

FLOOD = bytes(32 << 20)
"""The body of a response that is a flood: Envoy takes up to 16 MiB of one unread (the window of an HTTP/2
stream), and a socket 4 MiB more."""

_PREFACE = b"PRI * HTTP/2.0"


@dataclass(slots=True)
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytearray = field(default_factory=bytearray)
    trailers: dict[str, str] = field(default_factory=dict)

    def answer(self, name: str) -> list[tuple[str, str]]:
        """The headers of the response: who served, what came."""
        answer = [
            ("content-type", "application/octet-stream"),
            ("x-simulated-engine", name),
            ("x-request-body-sha256", hashlib.sha256(self.body).hexdigest()),
            ("x-request-body-bytes", str(len(self.body))),
            ("x-request-method", self.method),
        ]
        if TRAILER in self.trailers:
            answer.append(("x-request-trailer", self.trailers[TRAILER]))
        return answer

    @property
    def early(self) -> bool:
        """The response is to begin before the request's body has come."""
        return self.path.endswith("?early")

    @property
    def flood(self) -> bool:
        """The response's body is to be far longer than what anybody buffers."""
        return self.path.endswith("?flood")

    @property
    def held(self) -> bool:
        """The response's body is to come only once `EchoEngine.release` is set."""
        return self.path.endswith("?hold")


class EchoEngine:
    """One engine at one port of this run's own loopback address."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self.release = asyncio.Event()
        """Lets the bodies of held responses go."""
        self.begun = 0
        """Responses that have begun so far."""
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._connected, HOST, self.port)

    async def stop(self) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in self._connections:
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # `start_server` would log the cancelling of `stop`.
            with contextlib.suppress(ConnectionError, h11.RemoteProtocolError, asyncio.CancelledError):
                begun = await reader.read(65_536)
                speak = self._http2 if begun.startswith(_PREFACE) else self._http1
                await speak(begun, reader, writer)
        finally:
            self._connections.discard(task)
            writer.close()

    # HTTP/1.1

    async def _http1(self, data: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(data)
        while True:
            seen: Seen | None = None
            while True:
                event = connection.next_event()
                if event is h11.NEED_DATA:
                    data = await reader.read(65_536)
                    connection.receive_data(data)
                    continue
                if isinstance(event, h11.ConnectionClosed):
                    return
                if isinstance(event, h11.Request):
                    seen = Seen(event.method.decode(), event.target.decode(), _named(event.headers))
                    if seen.early:
                        writer.write(self._head1(connection, seen))
                elif isinstance(event, h11.Data) and seen is not None:
                    seen.body += event.data
                elif isinstance(event, h11.EndOfMessage) and seen is not None:
                    seen.trailers = _named(event.headers)
                    break
                elif event is h11.PAUSED:
                    break
            assert seen is not None
            if "upgrade" in seen.headers:
                await self._upgraded(connection, seen, reader, writer)
                return
            if not seen.early:
                writer.write(self._head1(connection, seen))
            if seen.held:
                await writer.drain()
                await self.release.wait()
            for piece in _pieces(FLOOD if seen.flood else bytes(seen.body)):
                writer.write(connection.send(h11.Data(data=piece)) or b"")
                await writer.drain()
            trailers = [(TRAILER, seen.trailers[TRAILER])] if TRAILER in seen.trailers else []
            writer.write(connection.send(h11.EndOfMessage(headers=trailers)) or b"")
            await writer.drain()
            if connection.our_state is h11.MUST_CLOSE:
                return
            connection.start_next_cycle()

    def _head1(self, connection: h11.Connection, seen: Seen) -> bytes:
        self.begun += 1
        headers = [*seen.answer(self.name), ("transfer-encoding", "chunked")]
        return connection.send(h11.Response(status_code=200, headers=headers)) or b""

    async def _upgraded(
        self,
        connection: h11.Connection,
        seen: Seen,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        headers = [
            ("upgrade", seen.headers["upgrade"]),
            ("connection", "upgrade"),
            *seen.answer(self.name)[1:2],
        ]
        writer.write(connection.send(h11.InformationalResponse(status_code=101, headers=headers)) or b"")
        data, _ = connection.trailing_data
        while True:
            writer.write(data)
            await writer.drain()
            data = await reader.read(65_536)
            if not data:
                return

    # HTTP/2

    async def _http2(self, data: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding="utf-8")
        )
        connection.initiate_connection()
        writer.write(connection.data_to_send())
        seen: dict[int, Seen] = {}
        window = asyncio.Event()
        answers: set[asyncio.Task[None]] = set()
        try:
            while data:
                for event in connection.receive_data(data):
                    number: Any = getattr(event, "stream_id", None)
                    match event:
                        case h2.events.RequestReceived():
                            fields = {str(k): str(v) for k, v in event.headers}
                            seen[number] = Seen(fields[":method"], fields[":path"], fields)
                            if seen[number].early:
                                connection.send_headers(number, self._head2(seen[number]))
                        case h2.events.DataReceived() if number in seen:
                            seen[number].body += event.data
                            connection.acknowledge_received_data(event.flow_controlled_length, number)
                        case h2.events.TrailersReceived() if number in seen:
                            seen[number].trailers = {str(k): str(v) for k, v in event.headers}
                        case h2.events.StreamEnded() if number in seen:
                            task = asyncio.create_task(
                                self._answer2(connection, number, seen, window, writer)
                            )
                            answers.add(task)
                            task.add_done_callback(answers.discard)
                        case h2.events.StreamReset():
                            seen.pop(number, None)
                        case _:
                            pass
                window.set()
                writer.write(connection.data_to_send())
                await writer.drain()
                data = await reader.read(65_536)
        finally:
            for task in answers:
                task.cancel()

    def _head2(self, seen: Seen) -> list[tuple[str, str]]:
        self.begun += 1
        return [(":status", "200"), *seen.answer(self.name)]

    async def _answer2(
        self,
        connection: h2.connection.H2Connection,
        number: int,
        seen: dict[int, Seen],
        window: asyncio.Event,
        writer: asyncio.StreamWriter,
    ) -> None:
        request = seen[number]
        if not request.early:
            connection.send_headers(number, self._head2(request))
        if request.held:
            writer.write(connection.data_to_send())
            await self.release.wait()
        rest = memoryview(FLOOD if request.flood else bytes(request.body))
        while rest and number in seen:
            room = min(
                connection.local_flow_control_window(number), connection.max_outbound_frame_size, PIECE
            )
            if room <= 0:
                window.clear()
                await window.wait()
                continue
            connection.send_data(number, bytes(rest[:room]))
            rest = rest[room:]
            writer.write(connection.data_to_send())
            await writer.drain()
        if number not in seen:
            return
        if TRAILER in request.trailers:
            connection.send_headers(number, [(TRAILER, request.trailers[TRAILER])], end_stream=True)
        else:
            connection.end_stream(number)
        del seen[number]
        writer.write(connection.data_to_send())


def _named(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, str]:
    return {name.decode().lower(): value.decode() for name, value in headers}


def _pieces(body: bytes) -> Iterable[bytes]:
    return (body[at : at + PIECE] for at in range(0, len(body), PIECE))


@contextlib.asynccontextmanager
async def echo_engines(ports: Iterable[int]) -> AsyncIterator[list[EchoEngine]]:
    """Engines named `engine-1`, `engine-2`, ... at these ports."""
    engines = [EchoEngine(f"engine-{index}", port) for index, port in enumerate(ports, 1)]
    try:
        for engine in engines:
            await engine.start()
        yield engines
    finally:
        await asyncio.gather(*(engine.stop() for engine in engines))
