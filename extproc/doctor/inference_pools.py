"""InferencePools: is the router their picker, and do requests go on without it?"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.doctor import acceptance
from extproc.doctor.findings import Finding, error, warning
from extproc.doctor.inventory import Inventory, Json, Reference, at, entries, listed, reference_of, titled
from extproc.doctor.pools import members, ready


def naming(inventory: Inventory, service: Reference) -> list[Json]:
    """The InferencePools whose picker is this Service, which must be in their namespace."""
    return [
        pool
        for pool in inventory.of("InferencePool")
        if reference_of(pool).namespace == service.namespace
        and at(pool, "spec", "endpointPickerRef", "name") == service.name
        and not at(pool, "spec", "endpointPickerRef", "group")
        and at(pool, "spec", "endpointPickerRef", "kind") in (None, "Service")
    ]


def check(inventory: Inventory, service: Reference) -> Iterator[Finding]:
    """What is wrong with the InferencePools whose picker is this Service."""
    found = inventory.get("Service", service)
    ports = [port["port"] for port in entries(found, "spec", "ports")]
    for pool in naming(inventory, service):
        picker = at(pool, "spec", "endpointPickerRef")
        yield from acceptance.check_pool(pool)
        number = at(picker, "port", "number")
        if found is not None and number not in ports:
            yield error(
                "service-port",
                titled(pool),
                f"names port {number} of Service {service}, which has {listed(ports)}",
                "set endpointPickerRef.port.number to the port of gRPC, 9002 by default",
            )
        if at(picker, "failureMode") != "FailOpen":
            yield warning(
                "fail-closed",
                titled(pool),
                "without the router every request fails",
                "set endpointPickerRef.failureMode: FailOpen",
            )
        pods = members(pool)
        if not ready(inventory, pods):
            yield error(
                "pool-without-endpoints",
                titled(pool),
                f"no ready pod has the labels {pods.selector}: requests are answered with 503",
                "see why the engines are not ready, or mend spec.selector.matchLabels",
            )
