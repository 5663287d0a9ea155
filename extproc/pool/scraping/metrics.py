"""What the router says to Prometheus of the engines it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc.pool.reports import EngineReport
from extproc.tally import Durations, Tallies, Tally

RESULTS = ("success", "timeout", "connection", "authentication", "absent", "status", "page", "error")
"""What became of a scrape: `absent` is 404, `status` any other that is not 200, `page` one that is no
engine's, `error` a fault of the router."""

SCRAPE_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
"""Seconds. An engine takes some 10 ms to write its page, longer while it is busy."""

_log = structlog.get_logger(__name__)


class EngineState(NamedTuple):
    """What is known of one endpoint's engine at this moment."""

    endpoint: str
    known: bool
    """False while its metrics cannot be read, and before they were."""
    report: EngineReport | None
    """The last one, None before it."""
    age: float
    """Seconds since that."""


class ScrapeMetrics:
    """Counters of scrapes, and gauges of what they brought."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._scrapes = Tallies(
            "extproc_engine_scrapes",
            "Reads of an engine's metrics page by result: success, timeout, connection (refused, reset, TLS),"
            " authentication (401, 403), absent (404), status (any other), page (not an engine's), error"
            " (ours).",
            ["pool", "result"],
            registry,
        )
        self._seconds = Durations(
            "extproc_engine_scrape_seconds",
            "Time from asking an engine for its metrics to having read them, in seconds.",
            SCRAPE_BUCKETS,
            registry,
        )

    def pool(self, name: str) -> dict[str, Tally]:
        """The counters of a pool by result."""
        return {result: self._scrapes.labels(name, result) for result in RESULTS}

    def took(self, seconds: float) -> None:
        """A scrape that succeeded took this long."""
        self._seconds.observe(seconds)

    def watch(self, pools: Callable[[], Iterable[tuple[str, Iterable[EngineState]]]]) -> None:
        """Report these pools' engines at each scrape of the router. `pools` is called in the thread of
        that.
        """
        self._registry.register(_EngineStates(pools))


class _EngineStates(Collector):
    """Asks for the state of the engines when it is scraped."""

    def __init__(self, pools: Callable[[], Iterable[tuple[str, Iterable[EngineState]]]]) -> None:
        self._pools = pools

    def describe(self) -> Iterator[Metric]:
        """The names, without asking: `register` would otherwise collect."""
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        """One sample per pool and endpoint. Nothing is said of an engine that is not known."""
        states, running, waiting, kv_usage, age = families = self._families()
        try:
            pools = [(name, list(engines)) for name, engines in self._pools()]
        except Exception:
            # The other metrics are worth more than an empty scrape.
            _log.exception("the state of the engines cannot be read for this scrape")
            return
        for name, engines in pools:
            known = sum(engine.known for engine in engines)
            states.add_metric([name, "known"], known)
            states.add_metric([name, "unknown"], len(engines) - known)
            for engine in engines:
                if engine.report is not None:
                    labels = [name, engine.endpoint]
                    age.add_metric(labels, engine.age)
                    if engine.known:
                        running.add_metric(labels, engine.report.running)
                        waiting.add_metric(labels, engine.report.waiting)
                        kv_usage.add_metric(labels, engine.report.kv_usage)
        yield from families

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, ...]:
        by_endpoint = ["pool", "endpoint"]
        return (
            GaugeMetricFamily(
                "extproc_engine_metrics_endpoints",
                "Endpoints of a pool by whether their engine's metrics are known or unknown. Load that is"
                " unknown is counted from the router's own requests.",
                labels=["pool", "state"],
            ),
            GaugeMetricFamily(
                "extproc_engine_requests_running",
                "Requests in the engine's batch, as it reported last. Absent while unknown.",
                labels=by_endpoint,
            ),
            GaugeMetricFamily(
                "extproc_engine_requests_waiting",
                "Requests in the engine's queue, as it reported last. Absent while unknown.",
                labels=by_endpoint,
            ),
            GaugeMetricFamily(
                "extproc_engine_kv_cache_usage_ratio",
                "Part of the engine's KV cache in use, 0 to 1, as it reported last. Absent while unknown.",
                labels=by_endpoint,
            ),
            GaugeMetricFamily(
                "extproc_engine_report_age_seconds",
                "Time since the engine's metrics were last read, in seconds.",
                labels=by_endpoint,
            ),
        )
