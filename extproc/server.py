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
from typing import Any
from urllib.parse import quote

import grpc
import structlog
from google.protobuf.message import DecodeError
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from extproc.address import Address
from extproc.messages import Event, decode
from extproc.stream import Exchange

_log = structlog.get_logger(__name__)

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
    that ended by an error of ours. `max_message_bytes` bounds one message from Envoy.
    """

    def __init__(
        self,
        open_exchange: Callable[[Callable[[str], str]], Exchange],
        *,
        max_message_bytes: int,
        on_stream: Callable[[int], None],
        on_error: Callable[[str], None],
    ) -> None:
        self._open_exchange = open_exchange
        self._max_message_bytes = max_message_bytes
        self._on_stream = on_stream
        self._on_error = on_error
        self._health = health.aio.HealthServicer()
        self._servers: list[grpc.aio.Server] = []
        self._open: dict[asyncio.Task[None], Exchange] = {}
        self._waiting: set[asyncio.Task[None]] = set()
        """Streams of these that wait for Envoy's next message."""
        self._draining = False

    async def start(self, listen: Address, health_listen: Address | None) -> list[Address]:
        """Listen and serve.

        Returns the addresses with the ports that the kernel chose where 0 was asked for. Raises
        `ListenError`.
        """
        handler = grpc.stream_stream_rpc_method_handler(
            self._process, request_deserializer=_decode, response_serializer=None
        )
        main = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", self._max_message_bytes),
                # Two processes on one port would each get whole Envoy connections, not half of the requests.
                ("grpc.so_reuseport", 0),
                # Bodies come in a few large frames. Measured with 400 KB bodies: a fifth less time and CPU.
                ("grpc.http2.bdp_probe", 0),
                ("grpc.http2.lookahead_bytes", 8 << 20),
                ("grpc.http2.max_frame_size", 1 << 20),
                # Each request in flight is one stream for as long as its response lasts.
                ("grpc.max_concurrent_streams", 2**31 - 1),
            ]
        )
        main.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {"Process": handler}),))
        servers = [(main, listen)]
        if health_listen is not None:
            servers.append((grpc.aio.server(options=[("grpc.so_reuseport", 0)]), health_listen))
        bound = []
        for server, address in servers:
            health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
            if address.is_unix and _is_served(address.path):
                raise ListenError(f"cannot listen on {address}: another process listens there")
            try:
                port = server.add_insecure_port(_target(address))
            except RuntimeError as error:
                raise ListenError(
                    f"cannot listen on {address}: is the address in use or not ours?"
                ) from error
            bound.append(address if address.is_unix else address._replace(port=port))
        await self._health.set(LIVENESS, health_pb2.HealthCheckResponse.SERVING)
        await self.set_ready(False)
        for server, _ in servers:
            await server.start()
            self._servers.append(server)
        return bound

    async def set_ready(self, ready: bool) -> None:
        """What health answers for everything but liveness. Ignored while draining."""
        if self._draining:
            return
        status = health_pb2.HealthCheckResponse
        for name in HEALTH_SERVICES:
            await self._health.set(name, status.SERVING if ready else status.NOT_SERVING)

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
        self._open[task] = exchange
        self._on_stream(1)
        try:
            while (event := await self._next(task, context)) is not grpc.aio.EOF:
                for reply in exchange.receive(event):
                    await context.write(reply)
                if exchange.refused or (self._draining and exchange.past_pick):
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
            del self._open[task]
            self._on_stream(-1)
            exchange.close()

    async def _next(self, task: asyncio.Task[None], context: grpc.aio.ServicerContext) -> Any:
        """Envoy's next message. Only here may a drain end a stream: replies that were begun go out whole."""
        self._waiting.add(task)
        try:
            return await context.read()
        finally:
            self._waiting.discard(task)


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


def _decode(data: bytes) -> Event:
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
