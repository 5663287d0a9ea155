"""All checks of one attachment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from extproc.config import Config
from extproc.doctor import (
    access,
    backend_policies,
    client_policies,
    destination_rules,
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
    unread: frozenset[str] = frozenset()
    """Kinds of which not everything could be read: what needs them is not checked."""


def attached(evidence: Evidence) -> list[str]:
    """What asks the router: routes and InferencePools, as findings name them."""
    routes = [titled(one.route) for one in attachments(evidence.inventory, evidence.service)]
    named = inference_pools.naming(evidence.inventory, evidence.service)
    return list(dict.fromkeys([*routes, *map(titled, named)]))


def diagnose(evidence: Evidence) -> list[Finding]:
    """Everything that is wrong, each thing once, the worst first."""
    inventory, service = evidence.inventory, evidence.service
    found = list(evidence.troubles)
    for kinds, check in _CHECKS:
        if not kinds & evidence.unread:
            found += check(evidence)
    if not {"EnvoyExtensionPolicy", "InferencePool"} & evidence.unread:
        found += _attached_at_all(inventory, service)
    return sorted(dict.fromkeys(found), key=lambda one: one.severity is not Severity.ERROR)


def _attached_at_all(inventory: Inventory, service: Reference) -> Iterator[Finding]:
    if not (attaching(inventory, service) or inference_pools.naming(inventory, service)):
        yield warning(
            "not-attached",
            f"Service {service}",
            "no EnvoyExtensionPolicy and no InferencePool names it",
            "attach it, see docs/attach-envoy-gateway.md; an Envoy with a configuration of its own cannot"
            " be seen from here",
        )


def _access(evidence: Evidence) -> Iterator[Finding]:
    if evidence.config is not None:
        rights = access.needed(evidence.config, evidence.service.namespace)
        yield from access.check(rights, evidence.allowed, evidence.account)


def _pools(evidence: Evidence) -> Iterator[Finding]:
    if evidence.config is not None:
        yield from pools.check(evidence.inventory, evidence.service, evidence.config)


def _ports(evidence: Evidence) -> frozenset[int]:
    """The ports of the Service that attachments name."""
    by_routes = {one.port for one in attachments(evidence.inventory, evidence.service)}
    by_pools = {
        at(pool, "spec", "endpointPickerRef", "port", "number")
        for pool in inference_pools.naming(evidence.inventory, evidence.service)
    }
    return frozenset(port for port in by_routes | by_pools if port is not None)


_ATTACHMENT = frozenset({"EnvoyExtensionPolicy", "HTTPRoute", "GRPCRoute", "Gateway"})

_CHECKS: tuple[tuple[frozenset[str], Callable[[Evidence], Iterable[Finding]]], ...] = (
    (
        frozenset({"Service", "EndpointSlice"}),
        lambda one: router_service.check(one.inventory, one.service, _ports(one)),
    ),
    (frozenset(), _access),
    (
        _ATTACHMENT | {"Service", "ReferenceGrant"},
        lambda one: extension_policies.check(one.inventory, one.service, one.config),
    ),
    (
        _ATTACHMENT | {"BackendTrafficPolicy"},
        lambda one: backend_policies.check(one.inventory, one.service),
    ),
    (
        _ATTACHMENT | {"ClientTrafficPolicy"},
        lambda one: client_policies.check(one.inventory, one.service, one.config),
    ),
    (
        frozenset({"InferencePool", "Service", "Pod"}),
        lambda one: inference_pools.check(one.inventory, one.service),
    ),
    (
        frozenset({"InferencePool", "Service", "HTTPRoute", "GRPCRoute", "Gateway", "GatewayClass"})
        | {"BackendTLSPolicy", "DestinationRule"},
        lambda one: destination_rules.check(one.inventory, one.service, one.config),
    ),
    (_ATTACHMENT | {"InferencePool", "Service", "EndpointSlice", "Pod"}, _pools),
)
"""Which kinds each check needs, and the check."""
