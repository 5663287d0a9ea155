"""grpc.health.v1: what the process says of itself to gateways and kubelets.

grpcio's own servicer lets one `Watch` hold a server's end until the grace is over, and its status behind a
lock that a watcher holds while it writes.
"""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Response = health_pb2.HealthCheckResponse


class HealthService(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated without types
    """Answers by the statuses that were set; names never set are NOT_FOUND, as the protocol says."""

    def __init__(self) -> None:
        self._serving: dict[str, bool] = {}
        self._changed = asyncio.Event()
        self._ended = False

    def set(self, names: tuple[str, ...], serving: bool) -> None:
        """From now on these names are SERVING, or NOT_SERVING; watchers are told."""
        self._serving.update(dict.fromkeys(names, serving))
        self._wake()

    def end(self) -> None:
        """Close every `Watch` with OK: a server stops only when its calls have ended."""
        self._ended = True
        self._wake()

    async def Check(  # noqa: N802  the protocol's name
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """The status of one name."""
        serving = self._serving.get(request.service)
        if serving is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such service")
        return _Response(status=_Response.SERVING if serving else _Response.NOT_SERVING)

    async def Watch(  # noqa: N802
        self, request: health_pb2.HealthCheckRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """The status of one name now and at each change, until the server drains."""
        said = None
        while not self._ended:
            changed = self._changed
            status = self._status(request.service)
            if status != said:
                await context.write(_Response(status=status))
                said = status
            await changed.wait()

    def _status(self, name: str) -> int:
        serving = self._serving.get(name)
        status = _Response.SERVICE_UNKNOWN if serving is None else _Response.SERVING
        value: int = _Response.NOT_SERVING if serving is False else status
        return value

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
