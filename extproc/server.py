"""The gRPC server: ext_proc streams and health, started and drained. Knows nothing of bodies or endpoints.

Draining, in order: health says NOT_SERVING while new streams are still served, so that Envoy's health check
moves them elsewhere before anything is refused; streams that are past their pick are closed with OK, after
which Envoy finishes the response by itself, even when it is configured to fail closed; then the listener
closes.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from typing import Any
from urllib.parse import quote

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2_grpc

from extproc.address import Address
from extproc.health_service import HealthService
from extproc.listening import sockets_of
from extproc.messages import Event, decode
from extproc.stream import Exchange, Overdue

_log = structlog.get_logger(__name__)

_RESET_SECONDS = 0.02
"""How long to wait for a reset before a stream's status is sent: grpc.aio never frees the status of one that
has been reset, some 110 bytes (github.com/grpc/grpc/issues/43360)."""

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

LIVENESS = "liveness"
HEALTH_SERVICES = ("", "readiness", SERVICE, "inference-extension")
"""Names under which health is asked for: "" by Envoy and by hand, the others by the Endpoint Picker
Protocol; all follow readiness. `liveness` is SERVING for as long as the process can answer."""


class ListenError(Exception):
    """An address could not be listened on; the text names it and says why."""


class Server:
    """ext_proc on one address, gRPC health on the same and optionally on a second one.

    `open_exchange` is called for each stream with a look-up of its gRPC metadata (empty where absent);
    `on_stream` with 1 when a stream opens and -1 when it has ended; `on_error` with a short kind for streams
    that ended by an error of ours. `max_message_bytes` bounds one message from Envoy, which `decode` reads.
    """

    def __init__(
        self,
        open_exchange: Callable[[Callable[[str], str]], Exchange],
        *,
        max_message_bytes: int,
        on_stream: Callable[[int], None],
        on_error: Callable[[str], None],
        decode: Callable[[bytes], Event] = decode,
    ) -> None:
        self._open_exchange = open_exchange
        self._max_message_bytes = max_message_bytes
        self._on_stream = on_stream
        self._on_error = on_error
        self._decode = decode
        self._health = HealthService()
        self._servers: list[grpc.aio.Server] = []
        self._open: dict[asyncio.Task[None], Exchange] = {}
        self._waiting: set[asyncio.Task[None]] = set()
        """Streams of these that wait for Envoy's next message."""
        self._draining = False
        self._credentials: grpc.ServerCredentials | None = None
        """Kept alive: gRPC calls back into them at each handshake."""

    async def start(
        self,
        listen: Address,
        health_listen: Address | None,
        credentials: grpc.ServerCredentials | None = None,
    ) -> list[Address]:
        """Listen and serve: `listen` by TLS with `credentials`, `health_listen` always in plaintext, since
        kubelet's probes speak nothing else.

        Returns the addresses with the ports that the kernel chose where 0 was asked for. Raises
        `ListenError`.
        """
        handler = grpc.stream_stream_rpc_method_handler(
            self._process, request_deserializer=partial(_decoded, self._decode), response_serializer=None
        )
        main = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._max_message_bytes),
                # Two processes on one port would each get whole Envoy connections, not half of the requests.
                ("grpc.so_reuseport", 0),
                # Bodies come in a few large frames. Measured with 400 KB bodies: a fifth less time and CPU.
                # Of one stream 2 MiB may wait unread.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", 2 << 20),
                ("grpc.http2.max_frame_size", 1 << 20),
                # Each request in flight is one stream for as long as its response lasts.
                ("grpc.max_concurrent_streams", 2**31 - 1),
            ]
        )
        main.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
        servers = [(main, listen, credentials)]
        if health_listen is not None:
            servers.append((grpc.aio.server(options=[("grpc.so_reuseport", 0)]), health_listen, None))
        self._credentials = credentials
        bound = []
        for server, address, secret in servers:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
            if address.is_unix and _is_served(address.path):
                raise ListenError(f"cannot listen on {address}: another process listens there")
            bound.append(_bind(server, address, secret))
        self._health.set((LIVENESS,), True)
        await self.set_ready(False)
        for server, _, _ in servers:
            await server.start()
            self._servers.append(server)
        return bound

    async def set_ready(self, ready: bool) -> None:
        """What health answers for everything but liveness. Ignored while draining."""
        if self._draining:
            return
        self._health.set(HEALTH_SERVICES, ready)

    async def drain(self, delay: float, grace: float) -> None:
        """Stop within `delay` + `grace` seconds, losing nothing.

        For `delay` seconds new streams are still served, while health says NOT_SERVING. Streams past their
        pick are closed with OK. After it no stream is accepted, and what is left has `grace` seconds at
        most.
        """
        await self.set_ready(False)
        self._draining = True
        self._close_past_pick()
        await asyncio.sleep(delay)
        self._close_past_pick()
        self._health.end()
        await asyncio.gather(*(server.stop(grace) for server in self._servers))

    @property
    def open_streams(self) -> int:
        """How many requests are in flight through this server."""
        return len(self._open)

    def _close_past_pick(self) -> None:
        for task in self._waiting:
            if self._open[task].past_pick:
                task.cancel()

    async def _process(self, _requests: object, context: grpc.aio.ServicerContext) -> None:
        """One stream. It reads by itself: cancelling a pending `read` is how a drain wakes a stream."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        exchange = self._open_exchange(lambda key: _metadata(context, key))
        incoming = _Incoming(context)
        self._open[task] = exchange
        self._on_stream(1)
        try:
            while (event := await self._next(task, incoming, exchange.patience)) is not grpc.aio.EOF:
                for reply in exchange.receive(event):
                    await context.write(reply)
                if exchange.finished or (self._draining and exchange.past_pick):
                    return
        except asyncio.CancelledError:
            # Envoy went away, or the drain asked: only then does the stream end with OK.
            if not (self._draining and exchange.past_pick and not context.cancelled()):
                raise
            task.uncancel()
        except Exception as error:
            # Fail open: the stream ends with an error and Envoy's own policy routes the request.
            self._on_error(type(error).__name__)
            _log.error("stream failed", error=type(error).__name__)
            await context.abort(grpc.StatusCode.INTERNAL, "internal error")
        finally:
            incoming.close()
            del self._open[task]
            self._on_stream(-1)
            exchange.close()
        # Envoy has closed its half. It resets the stream too, which cancels this wait.
        await asyncio.sleep(_RESET_SECONDS)

    async def _next(self, task: asyncio.Task[None], incoming: _Incoming, patience: float | None) -> Any:
        """Envoy's next message. Only here may a drain end a stream: replies that were begun go out whole."""
        self._waiting.add(task)
        try:
            return await incoming.next(patience)
        finally:
            self._waiting.discard(task)


class _Incoming:
    """The messages of one stream, for which one need not wait for ever."""

    __slots__ = ("_context", "_reading")

    def __init__(self, context: grpc.aio.ServicerContext) -> None:
        self._context = context
        self._reading: asyncio.Future[Any] | None = None
        """A read that outlasted its time. gRPC allows one at once, so it is not begun anew."""

    async def next(self, patience: float | None) -> Any:
        """The next message, `grpc.aio.EOF` after the last; `Overdue` if none comes for `patience` seconds."""
        if self._reading is None:
            if patience is None:
                return await self._context.read()
            self._reading = asyncio.ensure_future(self._context.read())
        done, _ = await asyncio.wait((self._reading,), timeout=patience)
        if not done:
            return Overdue()
        reading, self._reading = self._reading, None
        return reading.result()

    def close(self) -> None:
        """The stream has ended: nothing is waited for any more."""
        if self._reading is not None:
            self._reading.cancel()


def _bind(server: grpc.aio.Server, address: Address, credentials: grpc.ServerCredentials | None) -> Address:
    """Bind every socket that an address stands for; the port is the kernel's where 0 was asked for."""
    try:
        sockets = sockets_of(address)
    except OSError as error:
        raise ListenError(f"cannot listen on {error}") from None
    port = 0
    for one in sockets:
        try:
            if credentials is None:
                port = server.add_insecure_port(_target(one))
            else:
                port = server.add_secure_port(_target(one), credentials)
        except RuntimeError as error:
            raise ListenError(f"cannot listen on {address}: is the address in use or not ours?") from error
    return address if address.is_unix else address._replace(port=port)


def _target(address: Address) -> str:
    """An address as gRPC reads it: what stands in a Unix socket's path may mean something in a URI."""
    return f"unix:{quote(address.path)}" if address.is_unix else str(address)


def _is_served(path: str) -> bool:
    """Whether a process listens on a Unix socket. gRPC removes the socket that it finds, also a live one."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:  # its queue is full
            return True
        except OSError:
            return False
        return True


def _decoded(decode: Callable[[bytes], Event], data: bytes) -> Event:
    try:
        return decode(data)
    except DecodeError:
        # gRPC logs a deserialiser's exception with its text, which may hold bytes of the message.
        raise ValueError("not an ext_proc message") from None


def _metadata(context: grpc.aio.ServicerContext, key: str) -> str:
    for name, value in context.invocation_metadata() or ():
        if name == key:
            return value if isinstance(value, str) else ""
    return ""
