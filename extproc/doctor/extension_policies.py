"""EnvoyExtensionPolicies: does the gateway send the router what it needs, and go on without it?"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.config import Config
from extproc.doctor import acceptance, breakers
from extproc.doctor.attachments import Attachment, attachments, naming
from extproc.doctor.findings import Finding, error, warning
from extproc.doctor.inventory import Inventory, Json, Reference, at, entries, listed, reference_of, titled

WHOLE_BODIES = ("Buffered", "BufferedPartial", "FullDuplexStreamed")
"""Body modes with which the pin goes out in time, keyed by the body (docs/exchanges.md)."""


def check(inventory: Inventory, service: Reference, config: Config | None) -> Iterator[Finding]:
    """What is wrong with the policies that name the router's Service. `config` is the router's, if known."""
    policies = naming(inventory, service)
    yield from acceptance.check(policies)
    attached = attachments(inventory, service)
    for policy in policies:
        yield from _granted(inventory, policy, service)
        if not any(one.policy is policy for one in attached):
            yield error(
                "no-route",
                titled(policy),
                "holds for no route: what it targets does not exist, or another policy goes before it",
                "name the HTTPRoute in targetRefs; it must be in the policy's namespace",
            )
    for one in attached:
        yield from _port(inventory, one, service)
        yield from _exchange(one)
        yield from _route_name(one, config)
        yield from breakers.check(
            at(one.ext_proc, "backendSettings") or {},
            "extProc[].backendSettings.",
            titled(one.policy),
            "the way to the router",
        )


def _granted(inventory: Inventory, policy: Json, service: Reference) -> Iterator[Finding]:
    own = reference_of(policy).namespace
    if own == service.namespace:
        return
    for grant in inventory.of("ReferenceGrant"):
        if reference_of(grant).namespace != service.namespace:
            continue
        allowed = any(
            one["kind"] == "EnvoyExtensionPolicy" and one["namespace"] == own
            for one in entries(grant, "spec", "from")
        )
        names = [one for one in entries(grant, "spec", "to") if one["kind"] == "Service"]
        if allowed and any(at(one, "name") in (None, service.name) for one in names):
            return
    yield error(
        "no-reference-grant",
        titled(policy),
        f"no ReferenceGrant in namespace {service.namespace} lets it name Service {service}",
        f"create one there, from EnvoyExtensionPolicy in namespace {own} to Service {service.name}",
    )


def _port(inventory: Inventory, one: Attachment, service: Reference) -> Iterator[Finding]:
    found = inventory.get("Service", service)
    ports = [port["port"] for port in entries(found, "spec", "ports")]
    if found is not None and one.port not in ports:
        yield error(
            "service-port",
            titled(one.policy),
            f"names port {one.port} of Service {service}, which has {listed(ports)}",
            "set extProc[].backendRefs[].port to the port of gRPC, 9002 by default",
        )


def _exchange(one: Attachment) -> Iterator[Finding]:
    where, ext_proc = titled(one.policy), one.ext_proc
    mode = at(ext_proc, "processingMode")
    if at(ext_proc, "shadowMode"):
        yield error(
            "shadow-mode", where, "the gateway does not listen to the router", "remove extProc[].shadowMode"
        )
    yield from _body(where, mode)
    if at(mode, "response") is None:
        yield warning(
            "response-not-sent",
            where,
            "the router does not hear which engine served, nor that one did not",
            "set processingMode.response: {attributes: [upstream.address, upstream.request_attempt_count]}",
        )
    elif "upstream.address" not in entries(mode, "response", "attributes"):
        yield warning(
            "served-unknown",
            where,
            "the router does not hear which engine served",
            "add upstream.address to processingMode.response.attributes",
        )
    elif "upstream.request_attempt_count" not in entries(mode, "response", "attributes"):
        yield warning(
            "attempts-unknown",
            where,
            "an engine that the gateway does not know, or did not draw by weight, is taken for dead",
            "add upstream.request_attempt_count to processingMode.response.attributes",
        )
    if at(mode, "response", "body") in ("Buffered", "BufferedPartial"):
        yield error(
            "response-buffered",
            where,
            "the gateway holds a streamed answer back until its end",
            "remove processingMode.response.body: the router needs no response bodies",
        )
    if not at(mode, "allowModeOverride") and at(mode, "response", "body") != "FullDuplexStreamed":
        yield warning(
            "mode-override",
            where,
            "the router cannot ask for the end of a response: for it a request is over when that begins",
            "set processingMode.allowModeOverride: true",
        )
    if not at(ext_proc, "failOpen"):
        yield warning(
            "fail-closed",
            where,
            "without the router every request fails",
            "set extProc[].failOpen: true"
            + (" and another body mode" if at(mode, "request", "body") == "FullDuplexStreamed" else ""),
        )


def _body(where: str, mode: Json | None) -> Iterator[Finding]:
    request = at(mode, "request")
    body = at(request, "body")
    if body in WHOLE_BODIES:
        return
    if request is None:
        what = "nothing of a request is sent to the router: it can pick no engine"
    elif body is None:
        what = "no bodies are sent to the router: requests are routed by load alone"
    else:
        what = f"with {body} the pin comes too late for bodies of more than one piece"
    yield error("body-mode", where, what, "set processingMode.request.body: Buffered")


def _route_name(one: Attachment, config: Config | None) -> Iterator[Finding]:
    if config is None or not any(pool.match and pool.match.route for pool in config.pools):
        return
    if "xds.route_name" not in entries(one.ext_proc, "processingMode", "request", "attributes"):
        yield error(
            "route-name-not-sent",
            titled(one.policy),
            "pools are told apart by the route (match.route), whose name is not sent to the router",
            "add xds.route_name to processingMode.request.attributes",
        )


def body_modes(inventory: Inventory, service: Reference, gateway: Json) -> set[str]:
    """How bodies of the requests that come by this Gateway are sent to the router."""
    return {
        str(at(one.ext_proc, "processingMode", "request", "body"))
        for one in attachments(inventory, service)
        if any(reference_of(own) == reference_of(gateway) for own in one.gateways)
    }
