"""One router process: put together from a configuration, run until a signal, drained."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import structlog
from prometheus_client import CollectorRegistry

from extproc import __version__, limits, logs, metrics
from extproc.config import Config, parse
from extproc.messages import Event, decode
from extproc.metrics import Metrics, TlsMetrics
from extproc.picker import Picked, Picker
from extproc.pool.discovery.metrics import DiscoveryMetrics
from extproc.pool.scraping.metrics import ScrapeMetrics
from extproc.pool.scraping.scraper import Scrapers
from extproc.pool_settings import PoolSettings, in_kubernetes
from extproc.pools import Pools
from extproc.reload import Parse, Reloader
from extproc.request_log import RequestLog
from extproc.server import Server
from extproc.sharing.metrics import SharingMetrics
from extproc.sharing.replica import Replica
from extproc.stream import Exchange
from extproc.tls import Certificates

if TYPE_CHECKING:
    from extproc.admin import Admin

POOL_METADATA = "x-warmroute-pool"
"""gRPC initial metadata with which a gateway names the pool (`match: {metadata: ...}`)."""

DRAIN_DELAY = 2.0
"""Seconds for which new streams are still served once health says NOT_SERVING: some health check intervals
of the gateway (`extproc envoy-config` checks each 0.5 s), so that nothing is sent here any more when the
listener closes."""

LATE_POOL_SECONDS = 10.0
"""Seconds from the start for which readiness waits for every pool's endpoints: requests of a pool that is
late would pass unpinned. After that one pool that is known is enough: the others must not go down with it."""

REQUEST_LOG_SECONDS = 2.0
"""Longest time in which what waits is still written to the request log at the end."""


class ExchangeKind(NamedTuple):
    """How the gateway's messages are read, and how they are answered."""

    decode: Callable[[bytes], Event]
    exchange: type[Exchange]


ORDINARY = ExchangeKind(decode, Exchange)

_log = structlog.get_logger(__name__)


async def run(
    config: Config, path: Path | None, *, parse: Parse = parse, exchange: ExchangeKind = ORDINARY
) -> None:
    """Serve until SIGTERM or SIGINT, then drain.

    `path` is watched for changes and read again on SIGHUP, with `parse`; None: nothing changes while running.
    `exchange` is how messages are read and answered.

    Raises `extproc.server.ListenError` or OSError, both naming the address, if it cannot listen, and
    `extproc.certificates.TlsError` if the certificate's files cannot be used.
    """
    limits.prepare()
    numbers = Metrics(CollectorRegistry())
    certificates = None if config.tls is None else Certificates(config.tls, TlsMetrics(numbers.registry))
    request_log = RequestLog(numbers.request_log, random.Random())
    replica: Replica | None = None

    def tell(pick: Picked) -> None:
        request_log.tell(pick)
        # With the request log on, picks are told of pools too whose strategy learns nothing.
        if replica is not None and pick.pool in pools.memories():
            replica.tell(pick)

    picker = Picker(numbers, time.monotonic, random.Random(), tell)
    server = Server(
        _exchanges(exchange.exchange, picker, numbers),
        max_message_bytes=config.max_message_bytes,
        on_stream=numbers.stream,
        on_error=numbers.stream_error,
        decode=exchange.decode,
    )
    readiness = asyncio.Event()
    scrapers = Scrapers(ScrapeMetrics(numbers.registry), time.monotonic, random.Random())
    discovery = DiscoveryMetrics(numbers.registry)
    pools = Pools(picker, numbers, readiness.set, scrapers, discovery)
    numbers.watch(pools.states)
    if config.sharing is not None:
        replica = Replica(
            config.sharing,
            pools.memories,
            SharingMetrics(numbers.registry),
            certificates,
            draw=random.Random(),
        )

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)

    def apply(changed: Config) -> None:
        logs.set_up(changed.log)
        pools.apply(changed.pools)
        request_log.apply(changed.request_log)
        picker.keys_always = changed.request_log is not None

    settings = PoolSettings(config, apply, numbers.settings, in_kubernetes(discovery))
    settings.use(config)
    reloader = None if path is None else Reloader(path, config, settings.use, numbers.config, parse=parse)
    if reloader is not None:
        loop.add_signal_handler(signal.SIGHUP, reloader.trigger)

    scraped = metrics.serve(config.metrics, numbers.registry) if config.metrics is not None else None
    admin = None if config.admin is None else _admin(picker)
    try:
        credentials = None if certificates is None else certificates.server_credentials()
        shared = None if replica is None else await replica.start()
        asked = None if admin is None or config.admin is None else await admin.start(config.admin)
        # Modules and settings stay: to look through them for garbage would hold requests up by 50 ms.
        gc.collect()
        gc.freeze()
        listen, *health = await server.start(config.listen, config.health, credentials)
        _log.info(
            "serving",
            version=__version__,
            listen=str(listen),
            tls=certificates is not None,
            health=str(health[0]) if health else None,
            metrics=None if scraped is None else str(scraped.address),
            sharing=None if shared is None else str(shared),
            admin=None if asked is None else str(asked),
            pools=[pool.name for pool in config.pools],
        )
        background = [
            asyncio.create_task(_follow_readiness(readiness, pools, server, replica), name="readiness"),
        ]
        if reloader is not None:
            background.append(asyncio.create_task(reloader.run(), name="configuration"))
        if certificates is not None:
            background.append(asyncio.create_task(certificates.follow(), name="certificates"))
        await stopping.wait()
        limit = (config if reloader is None else reloader.running).drain_timeout
        _log.info("draining", streams=server.open_streams, seconds=limit)
        for task in background:
            task.cancel()
        delay = min(DRAIN_DELAY, limit / 2)
        await server.drain(delay, limit - delay)
        await asyncio.gather(*background, return_exceptions=True)
        _log.info("stopped")
    finally:
        await settings.stop()
        await pools.stop()
        if replica is not None:
            await replica.stop()
        await asyncio.to_thread(request_log.stop, REQUEST_LOG_SECONDS)
        if admin is not None:
            await admin.stop()
        if scraped is not None:
            scraped.stop()


def _admin(picker: Picker) -> Admin:
    from extproc.admin import Admin  # aiohttp.web is loaded where it is wanted
    from extproc.explain import explain

    return Admin(lambda asked: explain(asked, picker.targets, time.monotonic(), picker.draws()))


def _exchanges(
    exchange: type[Exchange], picker: Picker, numbers: Metrics
) -> Callable[[Callable[[str], str]], Exchange]:
    def opened(metadata: Callable[[str], str]) -> Exchange:
        hint = metadata(POOL_METADATA) if picker.needs_hint else ""
        return exchange(lambda question: picker.pick(question, hint), numbers.unexpected_message)

    return opened


async def _follow_readiness(
    changed: asyncio.Event, pools: Pools, server: Server, replica: Replica | None
) -> None:
    """Ready once every pool is known, or some are and the others are late; and from then on for as long as
    one is, so that a pool added by a reload takes nobody down.
    """
    loop = asyncio.get_running_loop()
    patience = loop.time() + LATE_POOL_SECONDS
    ready = False
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(patience if loop.time() < patience else None):
                await changed.wait()
        changed.clear()
        late = not pools.synced and loop.time() >= patience
        if late and pools.some_synced and not ready:
            _log.warning("ready, though the endpoints of some pool are not known")
        ready = pools.synced or (pools.some_synced and (ready or late))
        await server.set_ready(ready)
        if replica is not None and ready:
            replica.ready()
