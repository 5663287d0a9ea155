"""Engines' load, read from their metrics ports over HTTP: what arrives, and what is known when none does."""

from __future__ import annotations

import asyncio
import gzip
import os
import random
import ssl
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from extproc.config import Config
from extproc.metrics import Metrics
from extproc.picker import Picker
from extproc.pool.pool import Pool
from extproc.pool.reports import REPORT_LIFETIME, EngineReport
from extproc.pool.scraping.metrics import ScrapeMetrics
from extproc.pool.scraping.page import MAX_PAGE_BYTES
from extproc.pool.scraping.scraper import Scrapers, Settings
from extproc.pools import Pools
from extproc.simulation.http import engines
from tests.certificates import Authority, Pair
from tests.pool.engines import Answer, MetricsPort, answering, hanging, metrics_port, page, sending, until

FAST = Settings(interval=0.03, idle_interval=0.06, timeout=0.5)
BUSY = answering(page(7, 3))
IDLE = answering(page())


class Reading:
    """Scrapers at work on one pool, and what they say of it."""

    def __init__(self, pool: Pool, scrapers: Scrapers, registry: CollectorRegistry) -> None:
        self.pool = pool
        self.scrapers = scrapers
        self._registry = registry

    def load(self, later: float = 0.0) -> dict[str, int]:
        snapshot = self.pool.snapshot(time.monotonic() + later)
        return dict(zip(snapshot.addresses, snapshot.in_flight.tolist(), strict=True))

    def metric(self, name: str, **labels: str) -> float | None:
        return self._registry.get_sample_value(name, {"pool": self.pool.name, **labels})

    def scrapes(self, result: str) -> float:
        return self.metric("extproc_engine_scrapes_total", result=result) or 0.0

    def known(self) -> float:
        return self.metric("extproc_engine_metrics_endpoints", state="known") or 0.0


@asynccontextmanager
async def reading(*addresses: str, settings: Settings = FAST) -> AsyncIterator[Reading]:
    registry = CollectorRegistry()
    scrapers = Scrapers(ScrapeMetrics(registry), time.monotonic, random.Random(1))
    pool = Pool("llama")
    pool.set_endpoints(addresses)
    scrapers.apply({pool: settings})
    try:
        yield Reading(pool, scrapers, registry)
    finally:
        await scrapers.stop()


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with capture_logs() as lines:
        yield lines


def said(log: list[Any], event: str) -> list[Any]:
    return [line for line in log if line["event"] == event]


async def more(router: Reading, result: str) -> None:
    """Wait for another scrape with this result."""
    before = router.scrapes(result)
    await until(lambda: router.scrapes(result) > before)


UNKNOWN, KNOWN_AGAIN = "engine metrics are unknown", "engine metrics are known again"


# --- What arrives ---


async def test_requests_that_others_sent_to_an_engine_are_seen() -> None:
    async with (
        engines(2) as (busy, idle),
        aiohttp.ClientSession() as client,
        reading(busy.address, idle.address) as router,
    ):
        body = {
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 1000,
            "ignore_eos": True,
        }
        async with AsyncExitStack() as requests:
            for _ in range(3):
                await requests.enter_async_context(
                    client.post(f"{busy.url}/v1/chat/completions", json={**body, "stream": True})
                )
            await until(lambda: router.load() == {busy.address: 3, idle.address: 0})
        await until(lambda: router.load() == {busy.address: 0, idle.address: 0})


async def test_what_the_simulated_engine_says_of_its_work_is_what_it_did() -> None:
    async with engines(1) as (engine,), aiohttp.ClientSession() as client:
        reports: list[EngineReport] = []
        async with reading(engine.address) as router:
            router.pool.report = lambda address, report, now: reports.append(report)  # type: ignore[method-assign]
            for _ in range(2):
                messages = [{"role": "user", "content": "hello " * 400}]
                async with client.post(
                    f"{engine.url}/v1/chat/completions", json={"messages": messages, "max_tokens": 2}
                ) as reply:
                    usage = (await reply.json())["usage"]
            tokens, cached = usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]
            assert cached > 0
            await until(lambda: reports and reports[-1].prefills == 2)
        last = reports[-1]
        assert (last.queried_tokens, last.hit_tokens) == (2 * tokens, cached)
        assert last.computed_tokens == 2 * tokens - cached
        assert 0 < last.prefill_s < 5


async def test_what_is_known_is_served_to_prometheus() -> None:
    async with metrics_port(BUSY) as port, reading(port.address) as router:
        await until(router.known)
        for name, value in (
            ("extproc_engine_requests_running", 7),
            ("extproc_engine_requests_waiting", 3),
            ("extproc_engine_kv_cache_usage_ratio", 0.5),
        ):
            assert router.metric(name, endpoint=port.address) == value
        age = router.metric("extproc_engine_report_age_seconds", endpoint=port.address)
        assert age is not None
        assert 0 <= age < 5
        assert router.scrapes("success") >= 1


async def test_a_compressed_page_is_read_though_none_was_asked_for() -> None:
    body = answering(gzip.compress(page(2, 1)), headers="content-encoding: gzip\r\n")
    async with metrics_port(body) as port, reading(port.address) as router:
        await until(lambda: router.load() == {port.address: 3})
        assert set(port.asked("accept-encoding")) == {"identity"}


async def test_a_page_in_chunks_is_read() -> None:
    text = page(2, 1)
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (text[:9], text[9:])) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    async with metrics_port(sending(head + chunks)) as port, reading(port.address) as router:
        await until(lambda: router.load() == {port.address: 3})


async def test_ipv6_engines_and_another_port_and_path() -> None:
    async with metrics_port(BUSY, host="::1") as port:
        number = port.address.rpartition(":")[2]
        settings = replace(FAST, port=int(number), path="/prometheus/metrics?a=b")
        async with reading("[::1]:9", settings=settings) as router:
            await until(lambda: router.load() == {"[::1]:9": 10})
            assert port.paths == {"/prometheus/metrics?a=b"}
            assert set(port.asked("host")) == {f"[::1]:{number}"}


# --- What does not ---


def _body(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)


_HUGE = b"vllm:num_requests_running 1\nvllm:num_requests_waiting 1\n" + b"# x\n" * (50 * 1024 * 1024 // 4)

FAILURES = [
    pytest.param(hanging, "timeout", "within 0.5 s", id="hangs"),
    pytest.param(
        sending(*[_body(page())[i : i + 1] for i in range(60)], seconds=0.02), "timeout", "0.5 s", id="drips"
    ),
    pytest.param(
        answering(b"", "401 Unauthorized"), "authentication", "set engineMetrics.tokenFile", id="401"
    ),
    pytest.param(answering(b"", "403 Forbidden"), "authentication", "set engineMetrics.tokenFile", id="403"),
    pytest.param(answering(b"", "404 Not Found"), "absent", "no /metrics there (404)", id="404"),
    pytest.param(answering(b"", "500 Internal Server Error"), "status", "answers 500", id="500"),
    pytest.param(answering(b"", "204 No Content"), "status", "answers 204", id="204"),
    pytest.param(
        answering(b"", "307 Temporary Redirect", "location: http://10.0.0.1/\r\n"),
        "status",
        "redirects (307)",
        id="redirects",
    ),
    pytest.param(answering(b"<html></html>"), "page", "no metrics of vLLM", id="another-page"),
    pytest.param(answering(os.urandom(100_000)), "page", "no metrics of vLLM", id="binary"),
    pytest.param(answering(b'[{"iter": 1}]'), "page", "/prometheus/metrics", id="json"),
    pytest.param(answering(b""), "page", "empty", id="empty"),
    pytest.param(answering(_HUGE), "page", f"more than {MAX_PAGE_BYTES} bytes", id="50-mb"),
    pytest.param(
        sending(b"HTTP/1.1 200 OK\r\n\r\n", *[_HUGE[:1_000_000]] * 50),
        "page",
        "more than",
        id="50-mb-unannounced",
    ),
    pytest.param(
        answering(gzip.compress(_HUGE), headers="content-encoding: gzip\r\n"),
        "page",
        "more than",
        id="50-mb-zipped",
    ),
    pytest.param(
        answering(b"no gzip", headers="content-encoding: gzip\r\n"),
        "connection",
        "HTTP",
        id="not-what-it-says",
    ),
    pytest.param(sending(_body(page())[:-9]), "connection", "HTTP response", id="cut"),
    pytest.param(sending(), "connection", "HTTP response", id="closes"),
    pytest.param(sending(os.urandom(1000)), "connection", "HTTP response", id="not-http"),
    pytest.param(
        sending(b"HTTP/1.1 200 OK\r\n", *[b"x: " + b"y" * 8000 + b"\r\n"] * 100),
        "connection",
        "HTTP response",
        id="endless-headers",
    ),
]


@pytest.mark.parametrize(("answer", "result", "words"), FAILURES)
async def test_an_engine_that_cannot_be_read_is_unknown_until_it_can_and_both_is_said_once(
    answer: Answer, result: str, words: str, log: list[Any]
) -> None:
    settings = FAST if result == "timeout" else replace(FAST, timeout=30)
    async with metrics_port(answer) as port, reading(port.address, settings=settings) as router:
        router.pool.take(port.address, 0.0)
        await until(lambda: said(log, UNKNOWN))
        (line,) = said(log, UNKNOWN)
        assert words in line["reason"]
        assert (line["endpoints"], line["count"], line["log_level"]) == ([port.address], 1, "warning")
        assert router.scrapes(result) >= 3
        assert router.scrapes("success") == 0
        assert router.known() == 0
        assert router.metric("extproc_engine_requests_running", endpoint=port.address) is None
        assert router.load() == {port.address: 1}, "unknown load is what the router sent"
        port.answer = BUSY
        await until(lambda: said(log, KNOWN_AGAIN), 20)
        assert router.load() == {port.address: 10}
        assert router.known() == 1
        assert len(said(log, UNKNOWN)) == 1


async def test_a_port_where_nobody_listens_is_unknown_and_the_others_are_read(log: list[Any]) -> None:
    async with metrics_port(BUSY) as port:
        async with metrics_port(BUSY) as gone:
            pass
        async with reading(gone.address, port.address) as router:
            await until(lambda: said(log, UNKNOWN))
            assert said(log, UNKNOWN)[0]["reason"] == "cannot connect: Connection refused"
            assert router.load() == {gone.address: 0, port.address: 10}


async def test_many_endpoints_that_fail_alike_make_one_line(log: list[Any]) -> None:
    async with metrics_port(answering(b"", "404 Not Found"), host="0.0.0.0") as port:
        number = port.address.rpartition(":")[2]
        async with reading(*[f"127.0.0.{i}:{number}" for i in range(1, 101)]):
            await until(lambda: sum(line["count"] for line in said(log, UNKNOWN)) == 100)
    assert len(said(log, UNKNOWN)) <= 5
    assert all(len(line["endpoints"]) <= 10 for line in said(log, UNKNOWN))


async def test_an_engine_that_disappears_is_busy_no_longer_than_a_report_lives(log: list[Any]) -> None:
    async with metrics_port(BUSY) as port, reading(port.address) as router:
        await until(lambda: router.load() == {port.address: 10})
        await port.stop()
        assert router.load() == {port.address: 10}
        await until(lambda: said(log, UNKNOWN))
        assert router.load(later=REPORT_LIFETIME) == {port.address: 0}
        assert router.metric("extproc_engine_requests_running", endpoint=port.address) is None
        await port.start()
        await until(lambda: said(log, KNOWN_AGAIN), 20)
        assert router.load() == {port.address: 10}


async def test_a_miss_now_and_then_is_not_said_and_the_report_before_it_counts(log: list[Any]) -> None:
    async with metrics_port(BUSY) as port, reading(port.address) as router:
        for _ in range(5):
            await until(lambda: router.load() == {port.address: 10})
            port.answer = answering(b"", "500 Internal Server Error")
            await more(router, "status")
            assert router.load() == {port.address: 10}
            port.answer = BUSY
            await more(router, "success")
    assert log == []


async def test_a_fault_of_the_router_with_one_endpoint_is_logged_and_the_others_are_read(
    log: list[Any],
) -> None:
    async with (
        metrics_port(BUSY) as first,
        metrics_port(BUSY) as second,
        reading(first.address, second.address) as router,
    ):
        works = router.pool.report

        def faulty(address: str, report: EngineReport, now: float) -> None:
            if address == first.address:
                raise KeyError("of ours")
            works(address, report, now)

        router.pool.report = faulty  # type: ignore[method-assign]
        await until(lambda: router.scrapes("error") >= 2 and router.scrapes("success") >= 2)
        router.pool.report = works  # type: ignore[method-assign]
        await until(lambda: router.load() == {first.address: 10, second.address: 10})


# --- How often ---


async def test_an_idle_engine_is_asked_less_often_until_a_request_is_sent_to_it() -> None:
    settings = replace(FAST, interval=0.05, idle_interval=60.0)
    async with (
        metrics_port(BUSY) as busy,
        metrics_port(IDLE) as idle,
        reading(busy.address, idle.address, settings=settings) as router,
    ):
        await until(lambda: len(busy.requests) >= 10 and idle.requests)
        assert len(idle.requests) == 1
        router.pool.take(idle.address, time.monotonic())
        await until(lambda: len(idle.requests) >= 3)


async def test_an_engine_has_one_request_at_a_time_over_one_connection() -> None:
    async with metrics_port(BUSY) as port, reading(port.address):
        await until(lambda: len(port.requests) >= 10)
        assert (port.most_under_way, port.connections) == (1, 1)


async def test_a_slow_engine_is_not_asked_again_before_it_has_answered() -> None:
    async def slow(port: MetricsPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(0.2)
        await BUSY(port, reader, writer)

    async with metrics_port(slow) as port, reading(port.address):
        await until(lambda: len(port.requests) >= 4)
        assert port.most_under_way == 1


async def test_a_connection_that_the_engine_closed_while_idle_costs_no_failure(log: list[Any]) -> None:
    async def once(port: MetricsPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await BUSY(port, reader, writer)
        writer.close()

    async with metrics_port(once) as port, reading(port.address) as router:
        await until(lambda: router.scrapes("success") >= 10)
        assert router.scrapes("connection") == 0


async def test_500_engines_are_all_known_and_their_reads_are_spread() -> None:
    async with metrics_port(BUSY, host="0.0.0.0") as port:
        number = port.address.rpartition(":")[2]
        addresses = [f"127.0.{i // 250}.{i % 250 + 1}:{number}" for i in range(500)]
        async with reading(*addresses, settings=replace(FAST, interval=2.0, idle_interval=5.0)) as router:
            await until(lambda: router.known() == 500, 30)
            assert port.most_under_way < 100
            await until(lambda: set(router.load().values()) == {10}, 30)


# --- Changes ---


async def test_endpoints_that_join_are_read_and_those_that_leave_are_not() -> None:
    async with (
        metrics_port(BUSY) as first,
        metrics_port(IDLE) as second,
        reading(first.address) as router,
    ):
        await until(lambda: router.load() == {first.address: 10})
        assert not second.requests
        router.pool.set_endpoints([second.address])
        await until(lambda: len(second.requests) >= 3)
        before = len(first.requests)
        await until(lambda: len(second.requests) >= 10)
        assert len(first.requests) == before
        assert router.metric("extproc_engine_requests_running", endpoint=first.address) is None
        assert router.known() == 1


async def test_other_settings_apply_without_losing_what_is_known() -> None:
    async with metrics_port(BUSY) as port, reading(port.address) as router:
        await until(lambda: router.load() == {port.address: 10})
        port.answer = hanging
        await until(lambda: port.under_way)
        port.requests.clear()
        port.answer = BUSY
        router.scrapers.apply({router.pool: replace(FAST, path="/other")})
        assert router.load() == {port.address: 10}
        assert router.known() == 1
        await until(lambda: port.paths == {"/other"})


async def test_settings_that_mend_what_failed_are_tried_at_once(log: list[Any]) -> None:
    async with (
        metrics_port(BUSY) as port,
        reading(port.address, settings=replace(FAST, port=9)) as router,
    ):
        await until(lambda: router.scrapes("connection") >= 6)
        router.scrapers.apply({router.pool: FAST})
        await until(lambda: router.known() == 1, 2)


async def test_reading_can_be_switched_off_and_on() -> None:
    async with metrics_port(BUSY) as port, reading(port.address) as router:
        await until(lambda: router.load() == {port.address: 10})
        router.scrapers.apply({})
        await until(lambda: router.metric("extproc_engine_metrics_endpoints", state="known") is None)
        before = len(port.requests)
        assert router.load() == {port.address: 10}
        assert router.load(later=REPORT_LIFETIME + 1) == {port.address: 0}
        router.scrapers.apply({router.pool: FAST})
        await until(lambda: len(port.requests) > before and router.known() == 1)


async def test_stopping_ends_every_task_and_connection() -> None:
    async with (
        metrics_port(BUSY) as port,
        metrics_port(hanging) as stuck,
        reading(port.address, stuck.address) as router,
    ):
        await until(lambda: port.requests and stuck.under_way)
        await router.scrapers.stop()
        await until(lambda: port.open == stuck.open == 0)
        names = {task.get_name() for task in asyncio.all_tasks()}
        assert not any("engine metrics" in name for name in names)


# --- Authentication and TLS ---


def by_token(*tokens: str) -> Answer:
    """Answers those that show one of these, and 401 to others."""

    async def answer(port: MetricsPort, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        shown = port.requests[-1].lower().partition("authorization: ")[2].partition("\r\n")[0]
        allowed = [f"bearer {token}".lower() for token in tokens]
        await (BUSY if shown in allowed else answering(b"", "401 Unauthorized"))(port, reader, writer)

    return answer


async def test_a_token_is_shown_and_a_renewed_one_too(tmp_path: Path, log: list[Any]) -> None:
    file = tmp_path / "token"
    file.write_text("first-secret\n")
    async with (
        metrics_port(by_token("first-secret")) as port,
        reading(port.address, settings=replace(FAST, token_file=file)) as router,
    ):
        await until(router.known)
        port.answer = by_token("second-secret")
        await until(lambda: said(log, UNKNOWN))
        assert "refused (401)" in said(log, UNKNOWN)[0]["reason"]
        new = tmp_path / "new"
        new.write_text("second-secret")
        new.replace(file)
        await until(lambda: said(log, KNOWN_AGAIN), 20)
    assert "secret" not in str(log)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "No such file"),
        (b"", "is empty"),
        (b"two words", "one token"),
        (b"a\r\nx-evil: 1", "one token"),
        (b"\xff", "one token"),
        (b"a" * 20_000, "larger than"),
    ],
)
async def test_a_token_file_that_cannot_be_used_is_said_and_mended(
    content: bytes | None, words: str, tmp_path: Path, log: list[Any]
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
    async with (
        metrics_port(by_token("right")) as port,
        reading(port.address, settings=replace(FAST, token_file=file)) as router,
    ):
        await until(lambda: said(log, UNKNOWN))
        assert words in said(log, UNKNOWN)[0]["reason"]
        assert words in said(log, "a file of engineMetrics not taken")[0]["error"]
        file.write_text("right")
        await until(lambda: router.known() == 1, 20)
        assert not port.asked("x-evil")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


def served_with(pair: Pair, directory: Path) -> ssl.SSLContext:
    file = directory / "pair.pem"
    file.write_bytes(pair.certificate + pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(file)
    return context


@pytest.mark.parametrize(
    ("names", "settings"),
    [
        (["127.0.0.1"], {}),
        (["engine.example"], {"server_name": "engine.example"}),
        (["other.example"], {"verify": False, "ca_file": None}),
    ],
)
async def test_engines_over_tls_are_read(
    names: list[str], settings: dict[str, Any], authority: Authority, tmp_path: Path
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_bytes(authority.pem)
    wanted = replace(FAST, **{"scheme": "https", "ca_file": ca, **settings})
    async with (
        metrics_port(BUSY, trust=served_with(authority.issue(names), tmp_path)) as port,
        reading(port.address, settings=wanted) as router,
    ):
        await until(router.known)


@pytest.mark.parametrize("settings", [{}, {"server_name": "other.example"}, {"ca_file": None}])
async def test_an_engine_whose_certificate_is_not_trusted_is_shown_no_token(
    settings: dict[str, Any], authority: Authority, tmp_path: Path, log: list[Any]
) -> None:
    ca, token = tmp_path / "ca.pem", tmp_path / "token"
    ca.write_bytes(authority.pem)
    token.write_text("secret")
    wanted = replace(FAST, **{"scheme": "https", "ca_file": ca, "token_file": token, **settings})
    async with (
        metrics_port(BUSY, trust=served_with(authority.issue(["engine.example"]), tmp_path)) as port,
        reading(port.address, settings=wanted),
    ):
        await until(lambda: said(log, UNKNOWN))
        assert "certificate is not trusted" in said(log, UNKNOWN)[0]["reason"]
        assert not port.requests


async def test_authorities_that_cannot_be_read_trust_nobody_until_they_can(
    authority: Authority, tmp_path: Path, log: list[Any]
) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("none")
    wanted = replace(FAST, scheme="https", ca_file=ca)
    async with (
        metrics_port(BUSY, trust=served_with(authority.issue(["127.0.0.1"]), tmp_path)) as port,
        reading(port.address, settings=wanted) as router,
    ):
        await until(lambda: said(log, UNKNOWN))
        assert "engineMetrics.tls.ca: holds no PEM certificates" in said(log, UNKNOWN)[0]["reason"]
        assert not port.requests
        ca.write_bytes(authority.pem)
        await until(lambda: router.known() == 1, 20)


async def test_plain_http_asked_over_tls_is_told_so(log: list[Any]) -> None:
    async with engines(1) as (engine,), reading(engine.address, settings=replace(FAST, scheme="https")):
        await until(lambda: said(log, UNKNOWN))
        assert "engineMetrics.scheme" in said(log, UNKNOWN)[0]["reason"]


# --- From the configuration ---


def config(address: str, **pool: Any) -> Config:
    return Config.model_validate({"pools": [{"name": "llama", "endpoints": {"static": [address]}, **pool}]})


@asynccontextmanager
async def pools_of(first: Config) -> AsyncIterator[tuple[Pools, Metrics]]:
    metrics = Metrics(CollectorRegistry())
    scrapers = Scrapers(ScrapeMetrics(metrics.registry), time.monotonic, random.Random(1))
    picker = Picker(metrics, time.monotonic, random.Random(1))
    pools = Pools(picker, metrics, lambda: None, scrapers)
    pools.apply(first.pools)
    try:
        yield pools, metrics
    finally:
        await pools.stop()


async def test_engines_are_read_by_default_and_a_reload_changes_how() -> None:
    async with metrics_port(BUSY) as port, pools_of(config(port.address)) as (pools, _):
        await until(lambda: port.requests)
        assert port.paths == {"/metrics"}
        pools.apply(config(port.address, engineMetrics={"path": "/other"}).pools)
        await until(lambda: "/other" in port.paths)
        pools.apply(config(port.address, engineMetrics=False).pools)
        await until(lambda: port.open == 0 or not port.under_way)


@pytest.mark.parametrize(
    ("pool", "asked"),
    [
        ({"strategy": "RANDOM"}, False),
        ({"strategy": "RANDOM", "shed": {"maxInFlight": 10}}, True),
        ({"strategy": "LEAST_OUTSTANDING_REQUESTS"}, True),
        ({"engineMetrics": False}, False),
    ],
)
async def test_engines_are_asked_for_their_load_where_it_is_used(pool: dict[str, Any], asked: bool) -> None:
    async with metrics_port(BUSY) as port, metrics_port(BUSY) as other:
        wanted = config(port.address, match={"route": "a"}, **pool)
        beside = config(other.address, name="other", match={"route": "b"})
        both = wanted.model_copy(update={"pools": (*wanted.pools, *beside.pools)})
        async with pools_of(both):
            await until(lambda: len(other.requests) >= 2)
            assert bool(port.requests) is asked
