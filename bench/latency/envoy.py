"""One Envoy with a listener per target: equal but for the processor behind each, and one has none.

What costs time is set as `extproc envoy-config` sets it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

Exchange = Literal["two-message", "one-message"]
Json = dict[str, Any]

DESTINATION = "x-gateway-destination-endpoint"
BODY_LIMIT = 1 << 20
"""Bytes of a body that Envoy buffers: up to it a body reaches the processor whole, in one message."""

MESSAGES: dict[Exchange, int] = {"two-message": 3, "one-message": 2}
"""Messages that Envoy sends per request: (headers,) body, response headers."""

_PLENTY = {
    "max_connections": 40000,
    "max_pending_requests": 40000,
    "max_requests": 40000,
    "max_retries": 1000,
}


def configuration(
    exchange: Exchange,
    admin: int,
    listeners: Mapping[str, int],
    processors: Mapping[str, int],
    upstream: Sequence[int],
) -> Json:
    """Envoy's bootstrap. Ports by target; a target that is not in `processors` has no ext_proc."""
    return {
        "admin": {"address": _address(admin)},
        "static_resources": {
            "listeners": [
                _listener(exchange, name, port, name in processors) for name, port in listeners.items()
            ],
            "clusters": [_engines(upstream), *(_processor(name, port) for name, port in processors.items())],
        },
    }


def _listener(exchange: Exchange, name: str, port: int, processed: bool) -> Json:
    filters = [_ext_proc(exchange, name)] if processed else []
    if processed and exchange == "one-message":
        # Headers are not sent, so something else must hold them until the body's reply brings the pin.
        filters.append(
            {
                "name": "envoy.filters.http.buffer",
                "typed_config": {**_type("filters.http.buffer.v3.Buffer"), "max_request_bytes": BODY_LIMIT},
            }
        )
    filters.append(
        {"name": "envoy.filters.http.router", "typed_config": _type("filters.http.router.v3.Router")}
    )
    strip = {
        **_type("http.early_header_mutation.header_mutation.v3.HeaderMutation"),
        "mutations": [{"remove": DESTINATION}],
    }
    manager = {
        **_type("filters.network.http_connection_manager.v3.HttpConnectionManager"),
        "stat_prefix": name,
        "stream_idle_timeout": "0s",
        "early_header_mutation_extensions": [{"name": "strip", "typed_config": strip}],
        "http_filters": filters,
        "route_config": {"virtual_hosts": [{"name": "all", "domains": ["*"], "routes": [_route()]}]},
    }
    return {
        "name": name,
        "address": _address(port),
        "per_connection_buffer_limit_bytes": BODY_LIMIT,
        "filter_chains": [{"filters": [{"name": "hcm", "typed_config": manager}]}],
    }


def _route() -> Json:
    retries = {
        "retry_on": "connect-failure,refused-stream,reset,retriable-status-codes",
        "retriable_status_codes": [503],
        "num_retries": 2,
    }
    return {
        "name": "llm",
        "match": {"prefix": "/"},
        "request_body_buffer_limit": BODY_LIMIT,
        "request_headers_to_remove": [DESTINATION],
        "route": {"cluster": "engines", "timeout": "0s", "retry_policy": retries},
    }


def _ext_proc(exchange: Exchange, name: str) -> Json:
    return {
        "name": "envoy.filters.http.ext_proc",
        "typed_config": {
            **_type("filters.http.ext_proc.v3.ExternalProcessor"),
            "stat_prefix": "picker",
            "grpc_service": {
                "envoy_grpc": {"cluster_name": f"picker-{name}"},
                "retry_policy": {
                    "retry_on": "connect-failure,refused-stream,reset-before-request,unavailable",
                    "num_retries": 2,
                },
            },
            # A failure shows as one, and a slow moment of the machine is measured instead of cut off.
            "failure_mode_allow": False,
            "message_timeout": "5s",
            "processing_mode": {
                "request_header_mode": "SEND" if exchange == "two-message" else "SKIP",
                "request_body_mode": "BUFFERED_PARTIAL",
                "response_header_mode": "SEND",
                "response_trailer_mode": "SEND",
            },
            "request_attributes": ["request.path", "xds.route_name"],
            "response_attributes": ["upstream.address"],
            "allow_mode_override": True,
            "allow_content_length_header": True,
            "metadata_options": {
                "receiving_namespaces": {"untyped": ["envoy.lb"]},
                "forwarding_namespaces": {"untyped": ["envoy.lb"]},
            },
        },
    }


def _engines(ports: Sequence[int]) -> Json:
    least_request = {
        "name": "envoy.load_balancing_policies.least_request",
        "typed_config": _type("load_balancing_policies.least_request.v3.LeastRequest"),
    }
    override = {
        **_type("load_balancing_policies.override_host.v3.OverrideHost"),
        "override_host_sources": [{"metadata": {"key": "envoy.lb", "path": [{"key": DESTINATION}]}}],
        "selected_host_key": {"key": "envoy.lb", "path": [{"key": f"{DESTINATION}-served"}]},
        "fallback_policy": {"policies": [{"typed_extension_config": least_request}]},
    }
    policy = {"name": "envoy.load_balancing_policies.override_host", "typed_config": override}
    return {
        "name": "engines",
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [_PLENTY]},
        "load_balancing_policy": {"policies": [{"typed_extension_config": policy}]},
        "load_assignment": _assignment("engines", ports),
    }


def _processor(name: str, port: int) -> Json:
    http2 = {
        "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        "explicit_http_config": {"http2_protocol_options": {}},
    }
    return {
        "name": f"picker-{name}",
        "type": "STATIC",
        "connect_timeout": "1s",
        "circuit_breakers": {"thresholds": [_PLENTY]},
        "typed_extension_protocol_options": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
        "load_assignment": _assignment(f"picker-{name}", [port]),
    }


def _assignment(cluster: str, ports: Sequence[int]) -> Json:
    hosts = [{"endpoint": {"address": _address(port)}} for port in ports]
    return {"cluster_name": cluster, "endpoints": [{"lb_endpoints": hosts}]}


def _address(port: int) -> Json:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _type(name: str) -> Json:
    return {"@type": f"type.googleapis.com/envoy.extensions.{name}"}
