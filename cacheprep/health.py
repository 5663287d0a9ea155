"""What kubelet and Prometheus ask a running process: /healthz, /readyz and /metrics over HTTP."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from cacheprep.failures import Failure, Reason

Problem = Callable[[], str]
"""Why not; "" if all is well."""


@asynccontextmanager
async def answering(
    address: str, registry: CollectorRegistry, unhealthy: Problem, unready: Problem
) -> AsyncIterator[int]:
    """Answer until the block ends. 503 and the reason where `unhealthy` or `unready` say one.

    Args:
        address: host:port; port 0 picks a free one.
        registry: what /metrics shows.
        unhealthy: why the process should be started anew.
        unready: why it does not do its work yet.

    Yields:
        the port.

    Raises:
        Failure: InvalidRequest if the address is none, or in use.
    """
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise Failure(Reason.INVALID_REQUEST, f"--listen {address!r}: write it as host:port")

    def answer(problem: Problem) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handle(_: web.Request) -> web.Response:
            said = problem()
            return web.Response(text=f"{said or 'ok'}\n", status=503 if said else 200)

        return handle

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(
            body=generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4}
        )

    application = web.Application()
    application.router.add_get("/healthz", answer(unhealthy))
    application.router.add_get("/readyz", answer(unready))
    application.router.add_get("/metrics", metrics)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host.strip("[]") or "0.0.0.0", int(port))
        try:
            await site.start()
        except OSError as error:
            raise Failure(Reason.INVALID_REQUEST, f"--listen {address!r}: {error.strerror}") from error
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
