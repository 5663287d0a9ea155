"""What the controller counts."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from cacheprep.plan.actions import Action

_ACTIONS = tuple(kind.__name__ for kind in Action.__args__)
_FAILURES = ("refused", "conflict", "unreachable", "unreadable", "defect")


class ControllerMetrics:
    """The metrics of one controller."""

    def __init__(self, registry: CollectorRegistry) -> None:
        prefix = "cacheprep_controller"
        self.leading = Gauge(f"{prefix}_leading", "1 for the replica that acts.", registry=registry)
        self.endpoints = Gauge(f"{prefix}_endpoints", "Endpoints that are kept.", registry=registry)
        self.planning = Histogram(
            f"{prefix}_plan_seconds",
            "Time that plans took to make.",
            registry=registry,
            buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 3.0),
        )
        self.actions = Counter(
            f"{prefix}_actions", "Actions that were carried out.", ["action"], registry=registry
        )
        self.failures = Counter(
            f"{prefix}_failures", "Plans that could not be carried out.", ["reason"], registry=registry
        )
        for action in _ACTIONS:
            self.actions.labels(action)
        for failure in _FAILURES:
            self.failures.labels(failure)
