"""What Prometheus sees of the objects that are followed in Kubernetes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from extproc.pool.discovery.metrics import DiscoveryMetrics


def test_each_resource_of_a_pool_is_watched_or_not_and_failures_are_counted_by_reason() -> None:
    registry = CollectorRegistry()
    metrics = DiscoveryMetrics(registry)

    def watching(resource: str, pool: str = "llama") -> float | None:
        labels = {"pool": pool, "resource": resource}
        return registry.get_sample_value("extproc_kubernetes_watching", labels)

    def failures(resource: str, reason: str) -> float | None:
        labels = {"pool": "llama", "resource": resource, "reason": reason}
        return registry.get_sample_value("extproc_kubernetes_failures_total", labels)

    with metrics.of("llama") as endpoints, metrics.of("other") as others:
        endpoints.failed("pods", "unreachable")
        assert watching("pods") == 0
        endpoints.watching("pods")
        endpoints.watching("inferencepools")
        others.watching("pods")
        assert (watching("pods"), watching("inferencepools"), watching("pods", "other")) == (1, 1, 1)
        endpoints.failed("pods", "forbidden")
        endpoints.failed("pods", "forbidden")
        assert (watching("pods"), watching("inferencepools")) == (0, 1)
    assert (failures("pods", "unreachable"), failures("pods", "forbidden")) == (1, 2)


def test_what_is_followed_no_more_is_neither_watched_nor_lost() -> None:
    registry = CollectorRegistry()
    metrics = DiscoveryMetrics(registry)
    with metrics.of("llama") as settings:
        settings.watching("configmaps")
        with metrics.of("llama") as endpoints:
            endpoints.watching("pods")
        labels = {"pool": "llama", "resource": "pods"}
        assert registry.get_sample_value("extproc_kubernetes_watching", labels) is None
        labels = {"pool": "llama", "resource": "configmaps"}
        assert registry.get_sample_value("extproc_kubernetes_watching", labels) == 1
