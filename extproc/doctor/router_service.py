"""The router's Service: is there one, is anybody behind it, and does it say what it speaks?"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.doctor.findings import Finding, error, warning
from extproc.doctor.inventory import Inventory, Reference, at, entries, titled

HTTP2 = ("kubernetes.io/h2c", "grpc", "http2", "https")
"""Values of appProtocol with which a gateway speaks HTTP/2 (KEP-3726, and what gateways add)."""


def check(inventory: Inventory, service: Reference, ports: frozenset[int]) -> Iterator[Finding]:
    """What is wrong with the Service; `ports` are those that attachments name."""
    found = inventory.get("Service", service)
    if found is None:
        yield error(
            "no-service",
            f"Service {service}",
            "there is no such Service",
            "apply manifests/base/router, or name the router's Service with --namespace and --service",
        )
        return
    if not any(_ready(one) for one in inventory.slices(service) for one in entries(one, "endpoints")):
        yield error(
            "no-ready-endpoints",
            titled(found),
            "no ready pod is behind it: requests pass the router by, or fail where the gateway fails closed",
            "see why the router's pods are not ready: kubectl describe pod, and their log",
        )
    for port in entries(found, "spec", "ports"):
        if port["port"] in ports and at(port, "appProtocol") not in HTTP2:
            yield warning(
                "app-protocol",
                titled(found),
                f"port {port['port']} says appProtocol {at(port, 'appProtocol') or 'nothing'}:"
                " some gateways then speak HTTP/1.1, which is no gRPC",
                "set appProtocol: kubernetes.io/h2c",
            )


def _ready(endpoint: object) -> bool:
    # Nil means true (API reference, EndpointConditions).
    return at(endpoint, "conditions", "ready") is not False
