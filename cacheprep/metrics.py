"""What a running fetch says of itself to Prometheus. States are read when they are scraped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from cacheprep.failures import Failure, Reason
from cacheprep.store.capacity import measure
from cacheprep.store.root import nearest
from cacheprep.transfer.counters import Counters, Phase


class FetchMetrics(Collector):
    """The counts of one fetch, and the disk that it goes to."""

    def __init__(self, counters: Counters, root: str) -> None:
        self._counters = counters
        self._root = root
        self.labels: dict[str, str] = {}
        """Of `cacheprep_cache_info`: key, source, revision, once they are known."""

    def collect(self) -> Iterator[Metric]:
        """Every metric, of this moment."""
        now, disk = self._counters.snapshot(), measure(nearest(self._root))
        yield InfoMetricFamily("cacheprep_cache", "The cache being fetched.", self.labels)
        for name, text, value in (
            ("bytes", "Bytes of the cache when whole.", now.bytes_total),
            ("bytes_done", "Bytes that are there.", now.bytes_done),
            ("bytes_kept", "Bytes of an earlier run that need not be fetched again.", now.bytes_kept),
            ("files", "Files of the cache.", now.files_total),
            ("files_done", "Files that are whole and verified.", now.files_done),
            ("connections", "Connections to the source.", now.connections),
            ("disk_used_bytes", "Bytes in use on the disk of the cache root.", disk.used),
            ("disk_available_bytes", "Bytes available there, as df says.", disk.available),
        ):
            yield GaugeMetricFamily(f"cacheprep_{name}", text, value)
        phases = GaugeMetricFamily("cacheprep_phase", "1 for what the fetch is at.", labels=["phase"])
        for phase in Phase:
            phases.add_metric([phase.value], phase is now.phase)
        yield phases
        for name, text, value in (
            ("fetched_bytes", "Bytes that came from the source.", now.bytes_fetched),
            ("retries", "Requests that were tried again.", now.retries),
            ("stalls", "Connections that were given up because too little came.", now.stalls),
        ):
            yield CounterMetricFamily(f"cacheprep_{name}", text, value)


@contextmanager
def served(address: str, collector: Collector) -> Iterator[int]:
    """Serve metrics until the block ends.

    Args:
        address: host:port; port 0 picks a free one. "" serves nothing.
        collector: what is served.

    Yields:
        the port, 0 if nothing is served.

    Raises:
        Failure: InvalidRequest if the address is none, or in use.
    """
    if not address:
        yield 0
        return
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise Failure(Reason.INVALID_REQUEST, f"--metrics-address {address!r}: write it as host:port")
    registry = CollectorRegistry()
    registry.register(collector)
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or "0.0.0.0", registry)
    except OSError as error:
        raise Failure(
            Reason.INVALID_REQUEST, f"--metrics-address {address!r}: {error.strerror}; take another one"
        ) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
