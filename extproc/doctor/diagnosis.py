"""All checks of one attachment."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from extproc.config import Config
from extproc.doctor import (
    access,
    backend_policies,
    client_policies,
    extension_policies,
    inference_pools,
    pools,
    router_service,
)
from extproc.doctor.access import Right
from extproc.doctor.attachments import attachments
from extproc.doctor.attachments import naming as attaching
from extproc.doctor.findings import Finding, Severity, warning
from extproc.doctor.inventory import Inventory, Reference, at, titled


class Evidence(NamedTuple):
    """What is known of a router and of what surrounds it."""

    service: Reference
    """The router's Service."""
    account: Reference
    """The ServiceAccount of its pods."""
    config: Config | None
    """Its settings, if they are known."""
    inventory: Inventory
    allowed: Mapping[Right, bool]
    """What of `access.needed` the ServiceAccount may do, as far as that could be asked."""
    troubles: tuple[Finding, ...] = ()
    """What could not be read, and what is wrong with the configuration."""


def attached(evidence: Evidence) -> list[str]:
    """What asks the router: routes and InferencePools, as findings name them."""
    routes = [titled(one.route) for one in attachments(evidence.inventory, evidence.service)]
    named = inference_pools.naming(evidence.inventory, evidence.service)
    return list(dict.fromkeys([*routes, *map(titled, named)]))


def diagnose(evidence: Evidence) -> list[Finding]:
    """Everything that is wrong, each thing once, the worst first."""
    inventory, service, config = evidence.inventory, evidence.service, evidence.config
    found = [
        *evidence.troubles,
        *router_service.check(inventory, service, _ports(evidence)),
        *([] if config is None else _access(evidence, config)),
        *extension_policies.check(inventory, service, config),
        *backend_policies.check(inventory, service),
        *client_policies.check(inventory, service, config),
        *inference_pools.check(inventory, service),
        *([] if config is None else pools.check(inventory, service, config)),
    ]
    named = attaching(inventory, service) or inference_pools.naming(inventory, service)
    if not named:
        found.append(
            warning(
                "not-attached",
                f"Service {service}",
                "no EnvoyExtensionPolicy and no InferencePool names it",
                "attach it, see docs/attach-envoy-gateway.md; an Envoy with a configuration of its own cannot"
                " be seen from here",
            )
        )
    return sorted(dict.fromkeys(found), key=lambda one: one.severity is not Severity.ERROR)


def _access(evidence: Evidence, config: Config) -> Iterator[Finding]:
    rights = access.needed(config, evidence.service.namespace)
    return access.check(rights, evidence.allowed, evidence.account)


def _ports(evidence: Evidence) -> frozenset[int]:
    """The ports of the Service that attachments name."""
    by_routes = {one.port for one in attachments(evidence.inventory, evidence.service)}
    by_pools = {
        at(pool, "spec", "endpointPickerRef", "port", "number")
        for pool in inference_pools.naming(evidence.inventory, evidence.service)
    }
    return frozenset(port for port in by_routes | by_pools if port is not None)
