"""What the router says to Prometheus of what it follows in Kubernetes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from prometheus_client import CollectorRegistry, Counter, Gauge

from extproc.pool.discovery.observer import Observer, Trouble


class DiscoveryMetrics:
    """Whether each pool's objects are followed, by resource: endpointslices, pods and so on."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._watching = Gauge(
            "extproc_kubernetes_watching",
            "1 while a pool's objects are followed in Kubernetes, 0 while what was known last is used.",
            ["pool", "resource"],
            registry=registry,
        )
        self._failures = Counter(
            "extproc_kubernetes_failures",
            "Attempts to follow a pool's objects that failed: unreachable (no answer), forbidden (a right is"
            " missing) or refused (another answer than was asked for).",
            ["pool", "resource", "reason"],
            registry=registry,
        )

    @contextmanager
    def of(self, pool: str) -> Iterator[Observer]:
        """What hears how it goes with this pool's objects. After that nothing is said to be watched."""
        observer = _OfPool(pool, self._watching, self._failures)
        try:
            yield observer
        finally:
            observer.stopped()


class _OfPool:
    def __init__(self, pool: str, watching: Gauge, failures: Counter) -> None:
        self._pool = pool
        self._watching = watching
        self._failures = failures
        self._resources: set[str] = set()

    def watching(self, resource: str) -> None:
        self._set(resource, 1)

    def failed(self, resource: str, trouble: Trouble) -> None:
        self._set(resource, 0)
        self._failures.labels(self._pool, resource, trouble).inc()

    def stopped(self) -> None:
        for resource in self._resources:
            with suppress(KeyError):
                self._watching.remove(self._pool, resource)

    def _set(self, resource: str, value: float) -> None:
        self._resources.add(resource)
        self._watching.labels(self._pool, resource).set(value)
