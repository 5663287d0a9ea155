"""Circuit breakers: until its answer ends, each request holds a stream to the router and one to an engine."""

from __future__ import annotations

from collections.abc import Iterator

from extproc.doctor.findings import Finding, warning
from extproc.doctor.inventory import Json, at, listed

DEFAULT = 1024
"""What Envoy takes where nothing is said (config.cluster.v3.CircuitBreakers); a busy minute passes it."""

_LIMITS = ("maxConnections", "maxPendingRequests", "maxParallelRequests")


def check(settings: Json, path: str, where: str, whose: str) -> Iterator[Finding]:
    """Whether the breakers of these settings, which stand at `path` of the policy `where`, are raised."""
    values = {name: at(settings, "circuitBreaker", name) for name in _LIMITS}
    low = [
        f"{name} {DEFAULT if value is None else value}"
        for name, value in values.items()
        if value is None or value <= DEFAULT
    ]
    if low:
        yield warning(
            "breaker-low",
            where,
            f"the circuit breakers of {whose} are low: {listed(low)}; requests beyond are not sent there",
            f"set {path}circuitBreaker: {{{listed(f'{name}: 100000' for name in _LIMITS)}}}",
        )
