"""One router process: put together from a configuration, run until a signal, drained."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from extproc import __version__, logs, metrics
from extproc.config import Config
from extproc.metrics import Metrics
from extproc.picker import Picker
from extproc.pools import Pools
from extproc.reload import Reloader
from extproc.server import Server
from extproc.stream import Exchange

POOL_METADATA = "x-warmroute-pool"
"""gRPC initial metadata with which a gateway names the pool (`match: {metadata: ...}`)."""

DRAIN_DELAY = 2.0
"""Seconds for which new streams are still served once health says NOT_SERVING: some health check intervals
of the gateway (`extproc envoy-config` checks each 0.5 s), so that nothing is sent here any more when the
listener closes."""

_log = structlog.get_logger(__name__)


async def run(config: Config, path: Path) -> None:
    """Serve until SIGTERM or SIGINT, then drain. `path` is watched for changes; SIGHUP reads it again.

    Raises `extproc.server.ListenError` or OSError, both naming the address, if it cannot listen.
    """
    numbers = Metrics(CollectorRegistry())
    picker = Picker(numbers, time.monotonic, random.Random())
    server = Server(
        _exchanges(picker, numbers),
        max_message_bytes=config.max_message_bytes,
        on_stream=numbers.stream,
        on_error=numbers.stream_error,
    )
    readiness = asyncio.Event()
    pools = Pools(picker, numbers, readiness.set)
    numbers.watch(pools.states)
    pools.apply(config.pools)

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)

    def apply(changed: Config) -> None:
        logs.set_up(changed.log)
        pools.apply(changed.pools)

    reloader = Reloader(path, config, apply, numbers.config)
    loop.add_signal_handler(signal.SIGHUP, reloader.trigger)

    scraped = metrics.serve(config.metrics, numbers.registry) if config.metrics is not None else None
    try:
        listen, *health = await server.start(config.listen, config.health)
        _log.info(
            "serving",
            version=__version__,
            listen=str(listen),
            health=str(health[0]) if health else None,
            metrics=None if scraped is None else str(scraped.address),
            pools=[pool.name for pool in config.pools],
        )
        background = [
            asyncio.create_task(reloader.run(), name="configuration"),
            asyncio.create_task(_follow_readiness(readiness, pools, server), name="readiness"),
        ]
        await stopping.wait()
        limit = reloader.running.drain_timeout
        _log.info("draining", streams=server.open_streams, seconds=limit)
        for task in background:
            task.cancel()
        delay = min(DRAIN_DELAY, limit / 2)
        await server.drain(delay, limit - delay)
        await asyncio.gather(*background, return_exceptions=True)
        _log.info("stopped")
    finally:
        await pools.stop()
        if scraped is not None:
            scraped.stop()


def _exchanges(picker: Picker, numbers: Metrics) -> Callable[[Callable[[str], str]], Exchange]:
    def opened(metadata: Callable[[str], str]) -> Exchange:
        hint = metadata(POOL_METADATA) if picker.needs_hint else ""
        return Exchange(lambda question: picker.pick(question, hint), numbers.unexpected_message)

    return opened


async def _follow_readiness(changed: asyncio.Event, pools: Pools, server: Server) -> None:
    while True:
        await changed.wait()
        changed.clear()
        await server.set_ready(pools.synced)
