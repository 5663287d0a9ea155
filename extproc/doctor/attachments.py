"""Which routes ask the router, and which policies hold for them.

The rules are those of Envoy Gateway v1.9: a policy for a route goes before one for its Gateway, which counts
only where the route's says `mergeType`; of two for the same target the older one counts. But for
ClientTrafficPolicies, a policy for a part of a route, or for one listener, is taken for one of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from extproc.doctor.inventory import (
    Inventory,
    Json,
    Reference,
    at,
    entries,
    merged,
    reference_of,
    selects,
)

ROUTES = ("HTTPRoute", "GRPCRoute")


class Attachment(NamedTuple):
    """A route whose requests the router is asked about."""

    policy: Json
    """The EnvoyExtensionPolicy."""
    ext_proc: Json
    """Its entry that names the router's Service."""
    port: int | None
    """The port of that Service that it names."""
    route: Json
    gateways: tuple[Json, ...]
    """The route's, as far as they exist."""


class Effective(NamedTuple):
    """What holds for a target."""

    policies: tuple[Json, ...]
    """Those that it is made of, the most specific first."""
    spec: Json


def backends(ext_proc: Json, namespace: str) -> Iterator[tuple[Reference, int | None]]:
    """The Services that an `extProc` entry of a policy in this namespace names, with their ports."""
    for one in entries(ext_proc, "backendRefs"):
        if not at(one, "group") and at(one, "kind") in (None, "Service"):
            yield Reference(at(one, "namespace") or namespace, one["name"]), at(one, "port")


def attachments(inventory: Inventory, service: Reference) -> list[Attachment]:
    """Every route that asks this Service, by way of a policy for it or for its Gateway."""
    found = []
    for route in routes(inventory):
        gateways = gateways_of(inventory, route)
        effective = covering(inventory, "EnvoyExtensionPolicy", route, gateways)
        for policy in effective.policies:
            for ext_proc in entries(policy, "spec", "extProc"):
                for reference, port in backends(ext_proc, reference_of(policy).namespace):
                    if reference == service:
                        found.append(Attachment(policy, ext_proc, port, route, gateways))
    return found


def naming(inventory: Inventory, service: Reference) -> list[Json]:
    """Every EnvoyExtensionPolicy that names this Service, whether it holds for a route or not."""
    return [
        policy
        for policy in inventory.of("EnvoyExtensionPolicy")
        if any(
            reference == service
            for ext_proc in entries(policy, "spec", "extProc")
            for reference, _ in backends(ext_proc, reference_of(policy).namespace)
        )
    ]


def covering(inventory: Inventory, kind: str, route: Json, gateways: tuple[Json, ...]) -> Effective:
    """The policies of this kind that hold for a route."""
    own = _oldest(one for one in inventory.of(kind) if _targets(one, route))
    above = _oldest(one for gateway in gateways for one in inventory.of(kind) if _targets(one, gateway))
    if own is None:
        return Effective((), {}) if above is None else Effective((above,), above["spec"])
    if above is None or not at(own, "spec", "mergeType"):
        return Effective((own,), own["spec"])
    return Effective((own, above), merged(above["spec"], own["spec"]))


def of_listener(inventory: Inventory, gateway: Json, listener: str) -> Effective:
    """The ClientTrafficPolicy that holds for a listener of a Gateway: its own, else that of the Gateway."""
    policies = inventory.of("ClientTrafficPolicy")
    for section in (listener, None):
        policy = _oldest(one for one in policies if any(name == section for name in _sections(one, gateway)))
        if policy is not None:
            return Effective((policy,), policy["spec"])
    return Effective((), {})


def listeners(gateway: Json, route: Json) -> list[str]:
    """Names of the listeners of a Gateway that a route may attach to: those that it names, else all."""
    named = [
        at(parent, "sectionName")
        for parent in entries(route, "spec", "parentRefs")
        if _parent(parent, route) == reference_of(gateway)
    ]
    every = [one["name"] for one in entries(gateway, "spec", "listeners")]
    return every if None in named else [name for name in every if name in named]


def routes(inventory: Inventory) -> Iterator[Json]:
    """Every route of a kind whose requests can be HTTP."""
    for kind in ROUTES:
        yield from inventory.of(kind)


def gateways_of(inventory: Inventory, route: Json) -> tuple[Json, ...]:
    """The Gateways that a route names, as far as they exist."""
    parents = [
        _parent(one, route)
        for one in entries(route, "spec", "parentRefs")
        if at(one, "kind") in (None, "Gateway")
    ]
    found = (inventory.get("Gateway", reference) for reference in dict.fromkeys(parents))
    return tuple(one for one in found if one is not None)


def _parent(reference: Json, route: Json) -> Reference:
    return Reference(at(reference, "namespace") or reference_of(route).namespace, reference["name"])


def _targets(policy: Json, target: Json) -> bool:
    return any(True for _ in _sections(policy, target))


def _sections(policy: Json, target: Json) -> Iterator[str | None]:
    """The parts of an object that a policy names, by its name or labels; None for the whole."""
    spec, named = policy["spec"], reference_of(target)
    if named.namespace != reference_of(policy).namespace:
        return
    single = at(spec, "targetRef")
    for one in [*entries(spec, "targetRefs"), *([single] if single else [])]:
        if one["kind"] == target["kind"] and one["name"] == named.name:
            yield at(one, "sectionName")
    labels = at(target, "metadata", "labels") or {}
    for one in entries(spec, "targetSelectors"):
        if one["kind"] == target["kind"] and selects(one, labels):
            yield None


def _oldest(policies: Iterator[Json]) -> Json | None:
    return min(
        policies,
        key=lambda one: (at(one, "metadata", "creationTimestamp") or "", reference_of(one)),
        default=None,
    )
