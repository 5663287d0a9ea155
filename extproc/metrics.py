"""What the router says of itself to Prometheus.

Everything counted per request goes through children that are bound beforehand: `labels()` costs several
times what `inc()` does. What is a state rather than an event (in-flight counts, suspects) is read when it is
scraped and costs a request nothing. Every label takes few values: names from the configuration, addresses of
a pool's endpoints, or words listed here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NamedTuple, TypeVar, get_args

import structlog
from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    GCCollector,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from extproc import __version__
from extproc.address import Address
from extproc.listening import sockets_of
from extproc.pool.discovery.found import NodeCache, Place
from extproc.prompt import Prompt
from extproc.tally import Durations, Tallies, Tally

REASONS = ("prefix", "spill", "new", "load", "random", "shed", "empty", "unpinned")
"""Why a request went where it did: the reasons of a pick, and `unpinned` where there was none."""

_NOT_PICKED = frozenset({"shed", "empty", "unpinned"})

PICK_BUCKETS = (20e-6, 50e-6, 100e-6, 200e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3)
"""Seconds. A pick takes some 100 us; Envoy gives up after 200 ms by default."""

OTHER = "other"
"""Stands for every label value beyond `_MOST_VALUES`, should a caller let one follow its input."""
_MOST_VALUES = 32

_log = structlog.get_logger(__name__)


class PoolState(NamedTuple):
    """A pool as it is at this moment."""

    name: str
    synced: bool
    """Whether its endpoints have been learnt once."""
    endpoints: Collection[str]
    in_flight: Mapping[str, int]
    """Requests by address; also of endpoints that have left while requests run on them."""
    suspects: Collection[str]
    node_caches: Mapping[str, NodeCache] = {}
    """By address; unknown of those that are not in it."""
    places: Mapping[str, Place] = {}
    """By address, where discovery says it."""


class PoolMetrics:
    """The counters of one pool, bound to its labels."""

    __slots__ = ("_first", "_reasons", "_retry", "_took", "_unknown", "_untried")

    def __init__(
        self, reasons: Callable[[str, str], Tally], served: Callable[[str], Tally], took: Durations
    ) -> None:
        self._reasons = _Children(lambda key: reasons(*key), (OTHER, ""))
        for reason in REASONS:
            for cache in ("",) if reason in _NOT_PICKED else get_args(NodeCache):
                self._reasons[reason, cache] = reasons(reason, cache)
        self._first = served("first_choice")
        self._retry = served("retry")
        self._untried = served("untried")
        self._unknown = served("none")
        self._took = took

    def reason(self, reason: str, node_cache: NodeCache | Literal[""] = "") -> None:
        """A request was decided, for one of `REASONS`; `node_cache` is that of the endpoint, if one was
        picked."""
        self._reasons[reason, node_cache].inc()

    def took(self, seconds: float) -> None:
        """A pick took this long, from the body's bytes to the answer."""
        self._took.observe(seconds)

    def served_first(self) -> None:
        """The response came from the first choice."""
        self._first.inc()

    def served_retry(self) -> None:
        """The response came from another endpoint than the first choice."""
        self._retry.inc()

    def served_untried(self) -> None:
        """The response came from another endpoint, and Envoy may not have tried the first choice: the pin
        came after it had chosen, or named what it does not know."""
        self._untried.inc()

    def served_unknown(self) -> None:
        """A response began and the gateway did not say who served it, or none did."""
        self._unknown.inc()


class ConfigMetrics:
    """What became of the configuration file."""

    def __init__(self, registry: CollectorRegistry) -> None:
        reloads = Counter(
            "extproc_config_reloads",
            "Times a changed configuration file was read, by whether it was taken.",
            ["result"],
            registry=registry,
        )
        self._success = reloads.labels("success")
        self._failure = reloads.labels("failure")
        self._last = Gauge(
            "extproc_config_last_reload_successful",
            "1 if the configuration file as it is now was taken, 0 if an older one is running.",
            registry=registry,
        )
        self._last_at = Gauge(
            "extproc_config_last_reload_success_timestamp_seconds",
            "When a configuration was last taken, in seconds since the epoch.",
            registry=registry,
        )
        self._restart = Gauge(
            "extproc_config_restart_required",
            "1 if the file changes keys that are read at start only.",
            registry=registry,
        )

    def started(self, now: float) -> None:
        """The configuration at start was taken; `now` in seconds since the epoch."""
        self._last.set(1)
        self._last_at.set(now)

    def reloaded(self, now: float) -> None:
        """A changed file was taken."""
        self._success.inc()
        self.started(now)

    def refused(self) -> None:
        """A changed file was not taken; the configuration before it runs on."""
        self._failure.inc()
        self._last.set(0)

    def restart_required(self, required: bool) -> None:
        """Whether the file differs from what runs in keys that are read at start only."""
        self._restart.set(required)


class SettingsMetrics:
    """What became of settings that pools keep beside the configuration file."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._reloads = Counter(
            "extproc_pool_settings_reloads",
            "Times changed settings of a pool were read from Kubernetes, by whether they were taken.",
            ["pool", "result"],
            registry=registry,
        )
        self._last = Gauge(
            "extproc_pool_settings_last_reload_successful",
            "1 if a pool's settings in Kubernetes as they are now were taken, 0 if older ones are running.",
            ["pool"],
            registry=registry,
        )

    def reloaded(self, pool: str) -> None:
        """Changed settings were taken."""
        self._reloads.labels(pool, "success").inc()
        self._last.labels(pool).set(1)

    def refused(self, pool: str) -> None:
        """Changed settings were not taken; those before run on."""
        self._reloads.labels(pool, "failure").inc()
        self._last.labels(pool).set(0)

    def gone(self, pool: str) -> None:
        """The pool keeps none any more."""
        with suppress(KeyError):
            self._last.remove(pool)


class TlsMetrics:
    """What became of the certificate's files. Made where TLS is on."""

    def __init__(self, registry: CollectorRegistry) -> None:
        reloads = Counter(
            "extproc_tls_reloads",
            "Times changed certificate files were read, by whether they were taken.",
            ["result"],
            registry=registry,
        )
        self._success = reloads.labels("success")
        self._failure = reloads.labels("failure")
        self._remaining = Gauge(
            "extproc_tls_certificate_remaining_seconds",
            "Seconds until the certificate that is served expires; below 0 once it has.",
            registry=registry,
        )

    def certificate(self, remaining: Callable[[], float]) -> None:
        """`remaining` gives the seconds until the certificate that is served expires."""
        self._remaining.set_function(remaining)

    def reloaded(self) -> None:
        """Changed files were taken."""
        self._success.inc()

    def refused(self) -> None:
        """Changed files could not be used; what was served before is served on."""
        self._failure.inc()


class RequestLogMetrics:
    """What became of the records of the request log."""

    def __init__(self, registry: CollectorRegistry) -> None:
        records = Tallies(
            "extproc_request_log_records",
            "Records of the request log: written, failed (the file could not be written) or dropped (too many"
            " waited to be written).",
            ["result"],
            registry,
        )
        self._written = records.labels("written")
        self._failed = records.labels("failed")
        self._dropped = records.labels("dropped")

    def flushed(self, written: int, failed: int) -> None:
        """So many records were written, so many could not be. Called in the log's own thread."""
        self._written.inc(written)
        self._failed.inc(failed)

    def too_many(self) -> None:
        """A record was not taken because too many wait."""
        self._dropped.inc()


class Metrics:
    """Every metric of the router, in `registry`, beside those of the process and of Python."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # A second time series for every counter, which says when it began: nobody asks for it. Process-wide.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        GCCollector(registry=registry)
        Gauge("extproc_build_info", "1; the labels say what runs.", ["version"], registry=registry).labels(
            __version__
        ).set(1)
        self.registry = registry
        self.config = ConfigMetrics(registry)
        self.settings = SettingsMetrics(registry)
        self.request_log = RequestLogMetrics(registry)
        self._requests = Tallies(
            "extproc_requests",
            "Requests decided, by pool and why: prefix (where most of its prompt was sent before), spill"
            " (elsewhere: that one was busy), new (nobody was sent more than what many share), load, random,"
            " shed (429), empty (503) or unpinned (left to the gateway); and by whether the endpoint's node"
            " has the weights: warm, cold or unknown.",
            ["pool", "strategy", "reason", "node_cache"],
            registry,
        )
        self._served = Tallies(
            "extproc_served",
            "Responses begun, by who served: the first_choice, a retry elsewhere, untried (another endpoint,"
            " and the first choice was not asked: the pin came too late or the gateway does not know it), or"
            " none (not said).",
            ["pool", "outcome"],
            registry,
        )
        self._pick_seconds = Durations(
            "extproc_pick_seconds",
            "Time from a body's bytes to the answer (reading, block keys, pick), in seconds.",
            PICK_BUCKETS,
            registry,
        )
        self._prompts = Tallies(
            "extproc_prompts",
            "Request bodies by API (none: not understood) and whether all that isolates prefixes (model,"
            " adapter, salt, tools) was seen: complete, or partial where the body was cut before.",
            ["api", "scope"],
            registry,
        )
        self._prompt = _Children(lambda key: self._prompts.labels(*key), (OTHER, OTHER))
        self._body_bytes = Tallies(
            "extproc_body_bytes", "Bytes of request bodies that picks were made from.", [], registry
        ).labels()
        self._open = 0
        Gauge(
            "extproc_streams",
            "Open ext_proc streams, each one HTTP request until its response ends.",
            registry=registry,
        ).set_function(lambda: self._open)
        self._errors = Tallies(
            "extproc_stream_errors",
            "Streams ended by an error of the router, by its kind. The gateway's own policy routes these.",
            ["kind"],
            registry,
        )
        self._error = _Children(self._errors.labels, OTHER)
        self._unexpected = Tallies(
            "extproc_unexpected_messages",
            "Messages from the gateway that the exchange had no use for at that moment.",
            [],
            registry,
        ).labels()
        self._unmatched = self._requests.labels("", "", "unpinned", "")
        self._pools: dict[tuple[str, str], PoolMetrics] = {}

    def pool(self, name: str, strategy: str) -> PoolMetrics:
        """The counters of a pool; the same object for the same labels, so that a reload goes on counting."""
        known = self._pools.get((name, strategy))
        if known is None:
            known = self._pools[name, strategy] = PoolMetrics(
                lambda reason, cache: self._requests.labels(name, strategy, reason, cache),
                lambda outcome: self._served.labels(name, outcome),
                self._pick_seconds,
            )
        return known

    def watch(self, pools: Callable[[], Iterable[PoolState]]) -> None:
        """Report these pools at each scrape. `pools` is called in the scrape's thread."""
        self.registry.register(_PoolStates(pools))

    def read(self, prompt: Prompt | None, size: int) -> None:
        """A body of `size` bytes, 0 if there was none, was read as `prompt`, or as none."""
        if size:
            key = ("none", "complete") if prompt is None else (prompt.api, _SCOPE[prompt.scope.partial])
            self._prompt[key].inc()
            self._body_bytes.inc(size)

    def unmatched(self) -> None:
        """A request belongs to no pool and is left to the gateway. Counted with empty pool and strategy."""
        self._unmatched.inc()

    def stream(self, opened: int) -> None:
        """A stream was opened (1) or ended (-1)."""
        self._open += opened

    def stream_error(self, kind: str) -> None:
        """A stream ended by an error of ours; `kind` is a word, the exception's class, never its text."""
        self._error[kind].inc()

    def unexpected_message(self) -> None:
        """The gateway sent a message that the exchange had no use for."""
        self._unexpected.inc()


_SCOPE = {False: "complete", True: "partial"}


class _Children(dict[Any, Tally]):
    """Children by label value, bound at first use; `OTHER` once there are `_MOST_VALUES` of them."""

    def __init__(self, bind: Callable[[Any], Tally], other: object = OTHER) -> None:
        super().__init__()
        self._bind = bind
        self._other = other

    def __missing__(self, key: Any) -> Tally:
        if key != self._other and len(self) >= _MOST_VALUES:
            return self[self._other]
        child = self[key] = self._bind(key)
        return child


class _PoolStates(Collector):
    """Asks for the state of the pools when it is scraped."""

    def __init__(self, pools: Callable[[], Iterable[PoolState]]) -> None:
        self._pools = pools

    def describe(self) -> Iterator[Metric]:
        """The names, without asking: `register` would otherwise collect."""
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        """One sample per pool and endpoint, at this moment."""
        in_flight, endpoints, suspect, synced, info = families = self._families()
        try:
            states = list(self._pools())
        except Exception:
            # The other metrics are worth more than an empty scrape.
            _log.exception("the state of the pools cannot be read for this scrape")
            return
        for state in states:
            suspects = set(state.suspects) & set(state.endpoints)
            for address in sorted({*state.endpoints, *state.in_flight}):
                in_flight.add_metric([state.name, address], state.in_flight.get(address, 0))
            for address in state.endpoints:
                suspect.add_metric([state.name, address], address in suspects)
            endpoints.add_metric([state.name, "eligible"], len(state.endpoints) - len(suspects))
            endpoints.add_metric([state.name, "suspect"], len(suspects))
            synced.add_metric([state.name], state.synced)
            for address, place in state.places.items():
                info.add_metric([state.name, address, *place, state.node_caches.get(address, "unknown")], 1)
        yield from families

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, ...]:
        return (
            GaugeMetricFamily(
                "extproc_in_flight_requests",
                "Requests picked for an endpoint and not yet over, by this process's own count.",
                labels=["pool", "endpoint"],
            ),
            GaugeMetricFamily(
                "extproc_endpoints",
                "Endpoints of a pool by state: eligible, or suspect after not serving as first choice.",
                labels=["pool", "state"],
            ),
            GaugeMetricFamily(
                "extproc_endpoint_suspect",
                "1 for an endpoint that did not serve as first choice and has not served since.",
                labels=["pool", "endpoint"],
            ),
            GaugeMetricFamily(
                "extproc_pool_synced",
                "1 once the endpoints of a pool are known. Until then its requests pass unpinned.",
                labels=["pool"],
            ),
            GaugeMetricFamily(
                "extproc_endpoint_info",
                "1 for each endpoint that was found in Kubernetes; the labels say where it runs.",
                labels=["pool", "endpoint", "pod", "node", "zone", "node_cache"],
            ),
        )


class Served(NamedTuple):
    """A running /metrics server."""

    address: Address
    """Where it listens; the port that the kernel chose where 0 was asked for."""
    stop: Callable[[], None]
    """Closes the port and waits for the server's thread."""


T = TypeVar("T")

IDLE_SECONDS = 10.0
"""Seconds after which a connection that asks nothing is closed: each has a thread."""

REFUSED_SECONDS = 1.0
"""Seconds before another connection is tried after one could not be accepted."""


def _accepted(accept: Callable[[], T]) -> T:
    """A connection. Without a file descriptor left, `socketserver` would try again at once, for ever, and
    take the interpreter from the event loop."""
    try:
        return accept()
    except OSError as error:
        _log.error("metrics cannot accept a connection", error=error.strerror)
        time.sleep(REFUSED_SECONDS)
        raise


def serve(address: Address, registry: CollectorRegistry) -> Served:
    """Serve /metrics over HTTP from a thread of its own.

    Raises OSError whose text names the address and what is wrong, for example that the port is in use.
    """
    try:
        served = [start_http_server(one.port, one.host, registry) for one in sockets_of(address)]
    except OSError as error:
        raise OSError(f"metrics cannot listen on {error}") from error
    for server, _ in served:
        server.get_request = partial(_accepted, server.get_request)  # type: ignore[method-assign]
        handler: Any = server.RequestHandlerClass
        server.RequestHandlerClass = type("Handler", (handler,), {"timeout": IDLE_SECONDS})

    def stop() -> None:
        for server, thread in served:
            server.shutdown()
            server.server_close()
            thread.join()

    return Served(address._replace(port=served[0][0].server_port), stop)
