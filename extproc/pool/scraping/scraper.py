"""Asks the engines of pools for their metrics, and tells their pools.

What cannot be read is unknown: nothing is reported, the last report ages, and requests are routed on. People
are told once when an endpoint's metrics become unknown or known, in one line for all endpoints of a pool to
which the same happened.

Engines are asked a few at a time, `TICK` apart, rather than each on a timer of its own: that costs a third
less, and bounds what the event loop, which picks as well, does in one turn.
"""

from __future__ import annotations

import asyncio
import random
import ssl
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Literal, NamedTuple

import structlog

from extproc import __version__
from extproc.pool.pool import Pool
from extproc.pool.reports import EngineReport
from extproc.pool.scraping.cadence import Cadence
from extproc.pool.scraping.client import NoConnectionError, NoResponseError, Peer, Response
from extproc.pool.scraping.credentials import Credentials
from extproc.pool.scraping.metrics import EngineState, ScrapeMetrics
from extproc.pool.scraping.page import MAX_PAGE_BYTES, Unreadable, parse

TICK = 0.01
"""Seconds between two batches of reads."""
MOST_AT_ONCE = 8
"""Reads begun in a tick, so at most 800 a second for each pool: beyond that intervals grow, not the load."""
LOOK_SECONDS = 0.5
"""How often the pool is looked at for endpoints that joined, left or were given work; more often where the
interval is short."""
SAY_SECONDS = 0.5
"""What happens to several endpoints within this is said in one line."""
NAMED_IN_LOG = 10
"""A line in the log names so many endpoints at most, and says how many there are."""

_HEADERS = f"accept: text/plain\r\naccept-encoding: identity\r\nuser-agent: warmroute/{__version__}\r\n"
"""Not compressed, which costs an engine more than the bytes cost the network."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """How the engines of one pool are asked. Times in seconds."""

    path: str = "/metrics"
    port: int | None = None
    """None: the endpoint's own."""
    scheme: Literal["http", "https"] = "http"
    interval: float = 1.0
    """Between reads of an engine that has requests."""
    idle_interval: float = 5.0
    """Of one that has none."""
    timeout: float = 3.0
    """For one read, from connecting to its last byte."""
    token_file: Path | None = None
    """A bearer token."""
    ca_file: Path | None = None
    """Authorities; None: the system's."""
    server_name: str | None = None
    """The name that certificates must be for; None: the endpoint's IP address."""
    verify: bool = True
    """Whether certificates are verified."""


class _Failure(NamedTuple):
    """Why an engine could not be read: one of `RESULTS`, and words that stay the same from read to read."""

    result: str
    reason: str


class Scraper:
    """Reads the engines of one pool from the moment it is made until `stop`."""

    def __init__(
        self,
        pool: Pool,
        settings: Settings,
        metrics: ScrapeMetrics,
        clock: Callable[[], float],
        draw: random.Random,
    ) -> None:
        """Must be called in a running event loop. `clock`: monotonic seconds."""
        self._pool = pool
        self._metrics = metrics
        self._results = metrics.pool(pool.name)
        self._clock = clock
        self._settings = settings
        self._cadence = Cadence(settings.interval, settings.idle_interval, draw)
        self._addresses: tuple[str, ...] = ()
        self._peers: dict[str, tuple[Peer, bytes]] = {}
        """By address, and the request for its page."""
        self._last: dict[str, tuple[EngineReport, float]] = {}
        self._changes: dict[tuple[bool, str], list[str]] = {}
        self._say_at = inf
        self._credentials = self._new_credentials()
        self._reads: set[asyncio.Task[None]] = set()
        self._task = asyncio.create_task(self._run(), name=f"engine metrics of {pool.name}")

    def use(self, settings: Settings) -> None:
        """Ask in this way from the next read on. What was reported stays."""
        if settings == self._settings:
            return
        self._settings = settings
        self._credentials = self._new_credentials()
        self._ask_anew()
        self._task.cancel()
        self._task = asyncio.create_task(self._run(), name=self._task.get_name())

    def states(self) -> Iterator[EngineState]:
        """What is known of each endpoint's engine; safe from another thread."""
        now = self._clock()
        for address in self._addresses:
            report, at = self._last.get(address, (None, now))
            yield EngineState(address, self._cadence.known(address) is True, report, now - at)

    async def stop(self) -> None:
        """Stop reading, at once."""
        tasks = [self._task, *self._reads]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for peer, _ in self._peers.values():
            peer.retire()

    async def _run(self) -> None:
        while True:
            try:
                await self._credentials.load(tls=self._settings.scheme == "https")
                async with asyncio.TaskGroup() as tasks:
                    tasks.create_task(self._credentials.follow())
                    tasks.create_task(self._read_on())
            except Exception:
                # Whatever it is, requests are routed on by own counts.
                _log.exception("reading engine metrics failed and begins anew", pool=self._pool.name)
                await asyncio.sleep(LOOK_SECONDS)

    async def _read_on(self) -> None:
        clock, cadence = self._clock, self._cadence
        # Also in time for an engine that was just read, which is due only once it has answered.
        step = min(LOOK_SECONDS, self._settings.interval / 2)
        look_at = clock()
        while True:
            now = clock()
            if now >= look_at:
                look_at = now + step
                self._look(now)
            if now >= self._say_at:
                self._say()
            for address in cadence.take_due(now, MOST_AT_ONCE):
                read = asyncio.create_task(self._read(address))
                self._reads.add(read)
                read.add_done_callback(self._reads.discard)
            await asyncio.sleep(max(TICK, min(cadence.next_due, look_at) - clock()))

    def _look(self, now: float) -> None:
        addresses = self._pool.addresses
        if addresses != self._addresses:
            self._cadence.set_addresses(addresses, now)
            self._addresses = addresses
            for gone in self._peers.keys() - set(addresses):
                self._peers.pop(gone)[0].retire()
                self._last.pop(gone, None)
        self._cadence.has_work(address for address, count in self._pool.in_flight().items() if count)

    def _changed(self, known: bool, reason: str, address: str, now: float) -> None:
        if not self._changes:
            self._say_at = now + SAY_SECONDS
        self._changes.setdefault((known, reason), []).append(address)

    def _say(self) -> None:
        changes, self._changes, self._say_at = self._changes, {}, inf
        for (known, reason), concerned in changes.items():
            say = _log.info if known else _log.warning
            say(
                "engine metrics are known again" if known else "engine metrics are unknown",
                pool=self._pool.name,
                endpoints=concerned[:NAMED_IN_LOG],
                count=len(concerned),
                **({} if known else {"reason": reason}),
            )

    async def _read(self, address: str) -> None:
        """One read of one engine, and what follows from it. Raises nothing but `CancelledError`."""
        began = self._clock()
        settings = self._settings
        try:
            async with asyncio.timeout(settings.timeout):
                outcome = await self._ask(address)
            if settings is self._settings and isinstance(outcome, EngineReport):
                self._pool.report(address, outcome, self._clock())
        except Exception as error:
            outcome = _failure(error, settings)
        now = self._clock()
        if settings is not self._settings:
            # What was asked in the old way says nothing of the new one.
            self._cadence.again(address, now)
        elif isinstance(outcome, _Failure):
            self._results[outcome.result].inc()
            if self._cadence.failed(address, outcome.reason, now):
                self._changed(False, outcome.reason, address, now)
        else:
            self._results["success"].inc()
            self._metrics.took(now - began)
            if address in self._peers:
                self._last[address] = (outcome, now)
            if self._cadence.answered(address, outcome.running + outcome.waiting > 0, now):
                self._changed(True, "", address, now)

    async def _ask(self, address: str) -> EngineReport | _Failure:
        settings, credentials = self._settings, self._credentials
        trust = credentials.trust
        if settings.scheme == "https" and trust is None:
            return _Failure("connection", f"engineMetrics.tls.ca: {credentials.trust_problem}")
        peer, request = self._peers.get(address) or self._new_peer(address, trust, credentials.authorization)
        response = await peer.get(request, MAX_PAGE_BYTES)
        if response.status != 200:
            return self._refused(response.status)
        page = _page(response)
        if page is None:
            return _Failure("page", f"the page has more than {MAX_PAGE_BYTES} bytes, no engine's has")
        report = parse(page)
        return _Failure("page", report.reason) if isinstance(report, Unreadable) else report

    def _refused(self, status: int) -> _Failure:
        settings = self._settings
        if status in (401, 403):
            if settings.token_file is None:
                reason = f"needs authentication ({status}): set engineMetrics.tokenFile"
            elif problem := self._credentials.token_problem:
                reason = f"needs authentication ({status}), and engineMetrics.tokenFile: {problem}"
            else:
                reason = f"the token in engineMetrics.tokenFile is refused ({status})"
            return _Failure("authentication", reason)
        if status == 404:
            return _Failure(
                "absent",
                f"no {settings.path} there (404): set engineMetrics.path or port; SGLang needs"
                " --enable-metrics, or switch off with engineMetrics: false",
            )
        if 300 <= status < 400:
            return _Failure("status", f"{settings.path} redirects ({status}): set engineMetrics.path")
        return _Failure("status", f"{settings.path} answers {status}")

    def _new_peer(
        self, address: str, trust: ssl.SSLContext | None, authorization: str | None
    ) -> tuple[Peer, bytes]:
        settings = self._settings
        host, _, port = address.rpartition(":")
        port = str(settings.port or port)
        token = "" if authorization is None else f"authorization: {authorization}\r\n"
        request = f"GET {settings.path} HTTP/1.1\r\nhost: {host}:{port}\r\n{_HEADERS}{token}\r\n"
        peer = Peer(host.strip("[]"), int(port), trust, settings.server_name)
        self._peers[address] = peer, request.encode()
        return self._peers[address]

    def _ask_anew(self) -> None:
        """Over new connections and within an interval, as what is asked, or how, has changed."""
        settings = self._settings
        for peer, _ in self._peers.values():
            peer.retire()
        self._peers.clear()
        self._cadence.change(settings.interval, settings.idle_interval, self._clock())

    def _new_credentials(self) -> Credentials:
        settings = self._settings

        def changed() -> None:
            if self._settings is settings:
                self._ask_anew()

        return Credentials(settings.token_file, settings.ca_file, verify=settings.verify, on_change=changed)


class Scrapers:
    """The scrapers of all pools."""

    def __init__(self, metrics: ScrapeMetrics, clock: Callable[[], float], draw: random.Random) -> None:
        self._metrics = metrics
        self._clock = clock
        self._draw = draw
        self._running: dict[Pool, Scraper] = {}
        self._stopping: set[asyncio.Task[None]] = set()
        metrics.watch(self._states)

    def apply(self, wanted: Mapping[Pool, Settings]) -> None:
        """Read the engines of these pools from now on. Must be called in a running event loop."""
        for pool in self._running.keys() - wanted.keys():
            stopping = asyncio.create_task(self._running.pop(pool).stop())
            self._stopping.add(stopping)
            stopping.add_done_callback(self._stopping.discard)
        for pool, settings in wanted.items():
            running = self._running.get(pool)
            if running is not None:
                running.use(settings)
                continue
            self._running[pool] = Scraper(pool, settings, self._metrics, self._clock, self._draw)

    async def stop(self) -> None:
        """Stop reading and close every connection."""
        scrapers, self._running = self._running, {}
        await asyncio.gather(*(scraper.stop() for scraper in scrapers.values()), *self._stopping)

    def _states(self) -> Iterator[tuple[str, Iterator[EngineState]]]:
        for pool, scraper in tuple(self._running.items()):
            yield pool.name, scraper.states()


def _page(response: Response) -> bytes | None:
    """The body as it is meant; None if it is longer than any engine's."""
    body = response.body
    if body is None or response.encoding in ("", "identity"):
        return body
    if response.encoding not in ("gzip", "x-gzip", "deflate"):
        raise NoResponseError("compressed though it was asked not to be")
    decoder = zlib.decompressobj(zlib.MAX_WBITS | 32)
    try:
        page = decoder.decompress(body, MAX_PAGE_BYTES + 1)
    except zlib.error as error:
        raise NoResponseError("compressed in another way than it says") from error
    return page if len(page) <= MAX_PAGE_BYTES else None


def _failure(error: Exception, settings: Settings) -> _Failure:
    match error:
        case TimeoutError():
            return _Failure("timeout", f"no whole answer within {settings.timeout:g} s")
        case ssl.SSLCertVerificationError():
            reason = "its certificate is not trusted: set engineMetrics.tls.ca or tls.serverName"
            return _Failure("connection", reason)
        case ssl.SSLError():
            return _Failure("connection", "TLS fails: set engineMetrics.scheme to what it speaks")
        case NoConnectionError():
            return _Failure("connection", f"cannot connect: {error}")
        case NoResponseError():
            return _Failure("connection", f"no whole HTTP response: {error}")
    _log.warning("an error in reading engine metrics", exc_info=error)
    return _Failure("error", type(error).__name__)
