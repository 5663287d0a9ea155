"""A command that serves a cluster until it is told to stop."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from cacheprep.api.names import DEFAULT_ROOT
from cacheprep.failures import Failure, Reason
from extproc import logs
from extproc.config import LogConfig
from extproc.pool.discovery.kubernetes import ApiError, Cluster, connected

LISTEN = "0.0.0.0:8080"


def serve(work: Callable[[Cluster], Awaitable[None]]) -> None:
    """Log, connect to the cluster, and `work` until SIGTERM or SIGINT.

    Raises:
        Failure: InvalidRequest if there is no cluster; what `work` raises.
    """
    logs.set_up(LogConfig())
    asyncio.run(_serve(work))


async def _serve(work: Callable[[Cluster], Awaitable[None]]) -> None:
    async def connect() -> None:
        try:
            async with connected() as cluster:
                await work(cluster)
        except ApiError as error:
            raise Failure(Reason.INVALID_REQUEST, str(error)) from error

    working: asyncio.Task[Any] = asyncio.ensure_future(connect())
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, working.cancel)
    with suppress(asyncio.CancelledError):
        await working


def check_root(root: str) -> str:
    """The root itself, if it is written as `hostPath` of an object is.

    Raises:
        Failure: InvalidRequest if it is not.
    """
    if not root.startswith("/") or os.path.normpath(root) != root or root == "/":
        raise Failure(
            Reason.INVALID_REQUEST,
            f"--root {root!r}: write an absolute path as {DEFAULT_ROOT}, without .. and without / at its end",
        )
    return root
