"""Runs the router's own scraper against many engines and weighs it: CPU, bytes, delay of the event loop."""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import quantiles
from typing import NamedTuple

from prometheus_client import CollectorRegistry, generate_latest

from bench.scrape import aiohttp_peer
from bench.scrape.page import registry
from bench.scrape.ports import address
from extproc.pool.pool import Pool
from extproc.pool.scraping import scraper
from extproc.pool.scraping.client import Peer
from extproc.pool.scraping.metrics import ScrapeMetrics
from extproc.pool.scraping.page import parse
from extproc.pool.scraping.scraper import Scrapers, Settings

WARM_UP_SECONDS = 60.0
"""All engines must be known within this."""
OURS, AIOHTTP = "warmroute", "aiohttp"
CLIENTS: dict[str, type[Peer] | type[aiohttp_peer.AiohttpPeer]] = {
    OURS: Peer,
    AIOHTTP: aiohttp_peer.AiohttpPeer,
}

PROBE_SECONDS = 0.005
"""How often a task wants to run, as a pick would."""


class Rendering(NamedTuple):
    """What one read costs the engine."""

    engines: int
    """In one server."""
    page_bytes: int
    render_ms: float
    """CPU of prometheus_client for one page."""
    parse_us: float
    """CPU of the router to read it."""


class Scraping(NamedTuple):
    """What reading many engines costs the router."""

    client: str
    """Whose HTTP."""
    endpoints: int
    loaded: int
    """Of those, with requests."""
    page_bytes: int
    scrapes_per_s: float
    megabytes_per_s: float
    core_share: float
    """CPU seconds of the process in a second."""
    cpu_us_per_scrape: float
    delay_p50_ms: float
    """By how much a task runs later than it wanted to."""
    delay_p99_ms: float


def rendering(engines: int, repeats: int, rounds: int) -> Rendering:
    """Weigh one page, in the quietest of some rounds."""
    metrics = registry(engines, running=3)
    page = generate_latest(metrics)
    return Rendering(
        engines,
        len(page),
        min(_cpu(lambda: generate_latest(metrics), repeats) for _ in range(rounds)) * 1e3,
        min(_cpu(lambda: parse(page), 10 * repeats) for _ in range(rounds)) * 1e6,
    )


def _cpu(call: Callable[[], object], repeats: int) -> float:
    began = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - began) / repeats


@contextmanager
def ports(engines: int, loaded: int, into: Path) -> Iterator[int]:
    """The engines' ports; yields their number."""
    files = []
    for name, running in (("busy", 3), ("idle", 0)):
        files.append(into / f"scrape-{name}.txt")
        files[-1].write_bytes(generate_latest(registry(engines, running)))
    command = [sys.executable, "-m", "bench.scrape.ports", *map(str, files), str(loaded)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.terminate()


async def scraping(
    endpoints: int,
    loaded: int,
    port: int,
    page_bytes: int,
    rounds: int,
    seconds: float,
    settings: Settings,
    client: str = OURS,
) -> Scraping:
    """Read so many engines, once all are known: the round of `seconds` whose reads took the least CPU.

    What else runs on the machine only ever adds to it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * endpoints)), hard))
    metrics = CollectorRegistry()
    scrapers = Scrapers(ScrapeMetrics(metrics), time.monotonic, random.Random(1))
    pool = Pool("bench")
    pool.set_endpoints([address(index, port) for index in range(endpoints)])
    setattr(scraper, "Peer", CLIENTS[client])  # noqa: B010 - which mypy, rightly, does not take
    scrapers.apply({pool: settings})

    def value(name: str, **labels: str) -> float:
        return metrics.get_sample_value(name, {"pool": "bench", **labels}) or 0.0

    try:
        async with asyncio.timeout(WARM_UP_SECONDS):
            while value("extproc_engine_metrics_endpoints", state="known") < endpoints:  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await asyncio.sleep(settings.idle_interval)  # connections are open, and reads in their own rhythm
        gc.collect()
        found = []
        for _ in range(rounds):
            scrapes = value("extproc_engine_scrapes_total", result="success")
            cpu, wall = time.process_time(), time.monotonic()
            await asyncio.sleep(seconds)
            cpu, wall = time.process_time() - cpu, time.monotonic() - wall
            scrapes = value("extproc_engine_scrapes_total", result="success") - scrapes
            percentiles = quantiles(await _delays(seconds), n=100)  # apart, since looking costs as well
            found.append(
                Scraping(
                    client,
                    endpoints,
                    loaded,
                    page_bytes,
                    scrapes / wall,
                    scrapes * page_bytes / wall / 1e6,
                    cpu / wall,
                    cpu / scrapes * 1e6,
                    percentiles[49] * 1e3,
                    percentiles[98] * 1e3,
                )
            )
    finally:
        await scrapers.stop()
        await aiohttp_peer.close()
    return min(found, key=lambda row: row.cpu_us_per_scrape)


async def _delays(seconds: float) -> Sequence[float]:
    """How much later than asked for a task runs, again and again for `seconds`."""
    loop = asyncio.get_running_loop()
    end, delays = loop.time() + seconds, []
    while (now := loop.time()) < end:
        await asyncio.sleep(PROBE_SECONDS)
        delays.append(loop.time() - now - PROBE_SECONDS)
    return delays
