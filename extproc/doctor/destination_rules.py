"""Istio's DestinationRules: does the gateway speak TLS with the router where it is a pool's picker?

An Endpoint Picker serves by TLS (Endpoint Picker Protocol), and Istio speaks plaintext with a Service where
nothing says otherwise. How it chooses among rules is `PushContext.destinationRule` of Istio 1.32
(pilot/pkg/model/push_context.go): it looks in the gateway's namespace, the Service's and the mesh's root
namespace, and takes the first that has a rule for the host; there the most specific host; there the oldest.
"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.config import Config
from extproc.doctor import inference_pools
from extproc.doctor.attachments import gateways_of, routes
from extproc.doctor.findings import Finding, error
from extproc.doctor.inventory import Inventory, Json, Reference, at, entries, reference_of, titled

CONTROLLERS = ("istio.io/gateway-controller", "istio.io/unmanaged-gateway")
"""Of the GatewayClasses whose Gateways are Envoys that Istio configures."""
ROOT_NAMESPACE = "istio-system"
"""Istio's default. Another one cannot be seen: a rule of any namespace is taken for one of the root's where
neither that of the gateway nor that of the Service has one."""
DOMAIN = "cluster.local"
"""Istio's default. A host is looked at without it, so that others will do."""
CLEARTEXT = "kubernetes.io/h2c"
"""The appProtocol of a port that speaks HTTP/2 in plaintext (KEP-3726)."""
_TLS_MODES = ("SIMPLE", "MUTUAL", "ISTIO_MUTUAL")


def check(inventory: Inventory, service: Reference, config: Config | None) -> Iterator[Finding]:
    """Which InferencePools' requests fail, since Istio does not speak TLS with their picker, this Service, or
    does not take its certificate."""
    for pool in inference_pools.naming(inventory, service):
        port = at(pool, "spec", "endpointPickerRef", "port", "number")
        if _in_plaintext(inventory, service, port, config) or _has_tls_policy(inventory, service):
            continue
        for gateway in _of_istio(inventory, pool):
            rule = _holding(inventory, service, reference_of(gateway).namespace)
            yield from _by_rule(rule, titled(pool), gateway, service, port, config)


def _by_rule(
    rule: Json | None, where: str, gateway: Json, service: Reference, port: object, config: Config | None
) -> Iterator[Finding]:
    failing = "every request is answered with 500, whatever failureMode says"
    tls = _tls(rule, port)
    if rule is None:
        yield error(
            "no-tls-to-picker",
            where,
            f"{titled(gateway)} is Istio's, and no DestinationRule is for Service {service}: Istio speaks"
            f" plaintext, the router TLS, and {failing}",
            f"create a DestinationRule in namespace {service.namespace} with host: {_host(service)}.{DOMAIN}"
            f" and trafficPolicy.tls: {_wanted(config)}",
        )
    elif at(tls, "mode") not in _TLS_MODES:
        yield error(
            "no-tls-to-picker",
            where,
            f"{titled(rule)} sets no TLS for port {port} of Service {service}: Istio speaks plaintext, the"
            f" router TLS, and {failing}",
            f"set tls: {_wanted(config)} there",
        )
    elif _verifies_in_vain(tls, config):
        yield error(
            "picker-not-trusted",
            where,
            f"{titled(rule)} has Istio verify the router's certificate by the authorities of its system, none"
            f" of which issued it: {failing}",
            f"set tls: {_wanted(config)} there",
        )


def _verifies_in_vain(tls: Json | None, config: Config | None) -> bool:
    """Whether nothing that Istio knows can vouch for a certificate that the router made for itself.

    Without caCertificates and credentialName it goes by the system's authorities (cluster_tls.go).
    """
    own = config is None or config.tls is None or config.tls.self_signed
    told = any(at(tls, key) for key in ("insecureSkipVerify", "caCertificates", "credentialName"))
    return own and not told and at(tls, "mode") == "SIMPLE"


def _wanted(config: Config | None) -> str:
    """What of TLS a rule says for the router's certificate."""
    tls = None if config is None else config.tls
    if tls is not None and tls.client_ca is not None:
        return "{mode: MUTUAL, credentialName: …} with a certificate that an authority of clientCa issued"
    if tls is not None and not tls.self_signed:
        return "{mode: SIMPLE, credentialName: …} with the authority that issued the router's certificate"
    return "{mode: SIMPLE, insecureSkipVerify: true}"


def _in_plaintext(inventory: Inventory, service: Reference, port: object, config: Config | None) -> bool:
    """Whether the router says that it serves without TLS, which as a picker it does unless told to."""
    if config is not None and config.tls is None and "tls" in config.model_fields_set:
        return True
    return any(
        one["port"] == port and at(one, "appProtocol") == CLEARTEXT
        for one in entries(inventory.get("Service", service), "spec", "ports")
    )


def _has_tls_policy(inventory: Inventory, service: Reference) -> bool:
    """Whether a BackendTLSPolicy, of which Istio makes a rule of its own, is for the Service."""
    return any(
        reference_of(policy).namespace == service.namespace
        and any(
            one["kind"] == "Service" and one["name"] == service.name
            for one in entries(policy, "spec", "targetRefs")
        )
        for policy in inventory.of("BackendTLSPolicy")
    )


def _of_istio(inventory: Inventory, pool: Json) -> Iterator[Json]:
    """The Gateways of Istio's that have a route to an InferencePool, each once."""
    found = {
        reference_of(gateway): gateway
        for route in routes(inventory)
        if any(_leads_to(pool, route, one) for one in _backends(route))
        for gateway in gateways_of(inventory, route)
    }
    for gateway in found.values():
        named = Reference("", at(gateway, "spec", "gatewayClassName") or "")
        if at(inventory.get("GatewayClass", named), "spec", "controllerName") in CONTROLLERS:
            yield gateway


def _backends(route: Json) -> Iterator[Json]:
    for rule in entries(route, "spec", "rules"):
        yield from entries(rule, "backendRefs")


def _leads_to(pool: Json, route: Json, backend: Json) -> bool:
    namespace = at(backend, "namespace") or reference_of(route).namespace
    return at(backend, "kind") == "InferencePool" and Reference(namespace, backend["name"]) == reference_of(
        pool
    )


def _holding(inventory: Inventory, service: Reference, client: str) -> Json | None:
    """The rule by which a gateway in namespace `client` calls a Service."""
    rules = [
        (specificity, rule)
        for rule in inventory.of("DestinationRule")
        if (specificity := _specificity(rule, service)) is not None and _is_visible(rule, client)
    ]
    for place in _places(client, service.namespace):
        near = [
            (specificity, rule)
            for specificity, rule in rules
            if place in (None, reference_of(rule).namespace)
        ]
        if near:
            most = max(specificity for specificity, _ in near)
            oldest = sorted(
                (rule for specificity, rule in near if specificity == most),
                key=lambda rule: (at(rule, "metadata", "creationTimestamp") or "", reference_of(rule)),
            )
            # Of several for one host the oldest that has a trafficPolicy gives it (mergeDestinationRule).
            return next((rule for rule in oldest if at(rule, "spec", "trafficPolicy")), oldest[0])
    return None


def _places(client: str, service: str) -> Iterator[str | None]:
    """Namespaces in the order in which rules are looked for there; None: every other one."""
    if client != ROOT_NAMESPACE:
        yield client
    yield service
    yield None


def _specificity(rule: Json, service: Reference) -> tuple[bool, int] | None:
    """How closely a rule's host names a Service, the greater the closer; None: it is not for it."""
    host, wanted = str(at(rule, "spec", "host") or ""), _host(service)
    if "." not in host and host != "*":
        # A short name is one of the rule's own namespace (ResolveShortnameToFQDN).
        host = f"{host}.{reference_of(rule).namespace}.svc.{DOMAIN}"
    if host.startswith("*"):
        named, of_service, _ = host[1:].partition(".svc.")
        fits = wanted.endswith(f"{named}.svc") if of_service else f"{wanted}.{DOMAIN}".endswith(named)
        return (False, len(host)) if fits else None
    return (True, len(host)) if host.startswith(f"{wanted}.") else None


def _host(service: Reference) -> str:
    return f"{service.name}.{service.namespace}.svc"


def _is_visible(rule: Json, client: str) -> bool:
    """Whether a rule is exported to a namespace. One for some workloads alone is to its own at most."""
    own = reference_of(rule).namespace == client
    if at(rule, "spec", "workloadSelector"):
        return own
    exported = entries(rule, "spec", "exportTo")
    return not exported or "*" in exported or client in exported or (own and "." in exported)


def _tls(rule: Json | None, port: object) -> Json | None:
    """What a rule says of TLS with a port: all that it says of the port stands in for what it says of all."""
    policy = at(rule, "spec", "trafficPolicy")
    of_port = [one for one in entries(policy, "portLevelSettings") if at(one, "port", "number") == port]
    tls: Json | None = at(of_port[0] if of_port else policy, "tls")
    return tls
