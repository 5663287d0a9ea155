"""BackendTrafficPolicies: does the gateway obey the router, and try another engine where one fails?"""

from __future__ import annotations

from collections.abc import Iterator

from extproc.doctor import acceptance, breakers
from extproc.doctor.attachments import Attachment, Effective, attachments, covering
from extproc.doctor.findings import Finding, error, warning
from extproc.doctor.inventory import Inventory, Json, Reference, at, duration, entries, listed, titled

PIN = "x-gateway-destination-endpoint"
"""Header with the endpoints that the router names (Endpoint Picker Protocol)."""

ENVOY_REQUEST_SECONDS = 15.0
"""Envoy's limit for a whole answer where a route says none (config.route.v3.RouteAction.timeout)."""


def check(inventory: Inventory, service: Reference) -> Iterator[Finding]:
    """What is wrong on the way from the gateway to the engines of routes that ask this Service."""
    for one in attachments(inventory, service):
        effective = covering(inventory, "BackendTrafficPolicy", one.route, one.gateways)
        yield from acceptance.check(effective.policies)
        where = titled(effective.policies[0]) if effective.policies else titled(one.route)
        yield from _pin(effective.spec, where)
        yield from _retries(effective.spec, where)
        yield from breakers.check(effective.spec, "", where, "the engines")
        yield from _request_timeout(one, effective)


def _pin(spec: Json, where: str) -> Iterator[Finding]:
    sources = entries(spec, "loadBalancer", "endpointOverride", "extractFrom")
    headers = [str(at(source, "header")).lower() for source in sources]
    remedy = f"set loadBalancer.endpointOverride.extractFrom: [{{header: {PIN}}}] in its BackendTrafficPolicy"
    if not sources:
        yield error(
            "no-endpoint-override", where, "the gateway does not send requests where the router says", remedy
        )
    elif PIN not in headers:
        yield error(
            "other-pin-header", where, f"the gateway reads the endpoint from {listed(headers)}", remedy
        )
    elif headers != [PIN]:
        yield warning(
            "other-pin-header",
            where,
            f"the gateway reads the endpoint from {listed(headers)}: a client may send one of these",
            remedy,
        )


def _retries(spec: Json, where: str) -> Iterator[Finding]:
    retry = at(spec, "retry")
    if retry is None or at(retry, "numRetries") == 0:
        yield warning(
            "no-retries",
            where,
            "a request whose engine is gone fails: nothing is tried again",
            "set retry: {numRetries: 4, retryOn: {triggers: [connect-failure, refused-stream, reset,"
            " retriable-status-codes], httpStatusCodes: [503]}}",
        )
        return
    triggers = entries(retry, "retryOn", "triggers")
    if not {"reset", "5xx"} & set(triggers):
        yield warning(
            "no-retry-on-reset",
            where,
            "a request fails whose engine dies after it has read it and before it answers",
            "add reset to retry.retryOn.triggers",
        )
    if triggers and not {"connect-failure", "5xx"} & set(triggers):
        yield warning(
            "no-retry-on-connect-failure",
            where,
            "a request whose engine cannot be reached fails",
            "add connect-failure to retry.retryOn.triggers",
        )


def _request_timeout(one: Attachment, effective: Effective) -> Iterator[Finding]:
    general = duration(at(effective.spec, "timeout", "http", "requestTimeout"))
    for rule in entries(one.route, "spec", "rules"):
        own = duration(at(rule, "timeouts", "request"))
        seconds = next((each for each in (own, general) if each is not None), ENVOY_REQUEST_SECONDS)
        if 0 < seconds <= ENVOY_REQUEST_SECONDS:
            yield warning(
                "request-timeout",
                titled(one.route),
                f"answers are cut after {seconds:g} s",
                "set timeout.http.requestTimeout: 0s in its BackendTrafficPolicy"
                if own is None
                else "set timeouts.request: 0s in its rules",
            )
            return
