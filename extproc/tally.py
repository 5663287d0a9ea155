"""Counters and a histogram for the path of a request.

prometheus_client takes a lock and checks its labels on each increment, a microsecond or two each and a dozen
a request. One event loop writes these, so a plain addition will do; the scraping thread only reads.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Tally:
    """One counter."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0

    def inc(self, amount: int = 1) -> None:
        """Count `amount` more."""
        self.value += amount


class Tallies(Collector):
    """Counters of one name, one for each set of label values. `name` is without `_total`."""

    def __init__(self, name: str, help_: str, labels: Sequence[str], registry: CollectorRegistry) -> None:
        self._name, self._help, self._labels = name, help_, tuple(labels)
        self._children: dict[tuple[str, ...], Tally] = {}
        registry.register(self)

    def labels(self, *values: str) -> Tally:
        """The counter for these label values, to be kept and counted on."""
        return self._children.setdefault(values, Tally())

    def describe(self) -> Iterator[Metric]:
        """The name, for the registry."""
        yield CounterMetricFamily(self._name, self._help, labels=self._labels)

    def collect(self) -> Iterator[Metric]:
        """The counts now."""
        family = CounterMetricFamily(self._name, self._help, labels=self._labels)
        for values, tally in tuple(self._children.items()):
            family.add_metric(values, tally.value)
        yield family


class Durations(Collector):
    """A histogram without labels. `bounds` are the buckets' upper bounds, rising, without infinity."""

    def __init__(self, name: str, help_: str, bounds: Sequence[float], registry: CollectorRegistry) -> None:
        self._name, self._help, self._bounds = name, help_, tuple(bounds)
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    def describe(self) -> Iterator[Metric]:
        """The name, for the registry."""
        yield HistogramMetricFamily(self._name, self._help)

    def collect(self) -> Iterator[Metric]:
        """The counts now."""
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        cumulative = [float(count) for count in accumulate(self._counts)]
        family = HistogramMetricFamily(self._name, self._help)
        family.add_metric([], buckets=list(zip(bounds, cumulative, strict=True)), sum_value=self._sum)
        yield family
