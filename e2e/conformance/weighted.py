"""Two weighted InferencePools behind one rule: which picker the gateway asks for a request to which of them.

A request goes to one of the two by their weights; its pin must come from the picker of that one. Envoy can do
it, since a weighted cluster can have settings of a filter. Istio writes them into the route: one picker for
both.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from e2e.cluster import kind
from e2e.cluster.command import ClusterError
from e2e.conformance import istio, suite

TEST = "GatewayWeightedAcrossTwoInferencePools"
MANIFEST = "gateway_weighted_two_pools.yaml"
GATEWAY = ("inference-conformance-infra", "conformance-primary")
HOST = "primary.example.com"
PATH = "/weighted-two-pools-test"
PICKER_PORT = 9002
FILTER = "envoy.filters.http.ext_proc"

Json = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """What Envoy is told of the route."""

    clusters: tuple[tuple[str, int], ...]
    """Name and weight of each."""
    pickers: tuple[str, ...]
    """The clusters of the pickers that it asks: the route's, and that of each weighted cluster with one."""
    route: Json


def seen() -> Told:
    """Apply the route of the suite's test, and look at what the gateway makes of it; then remove it.

    Raises `ClusterError` if the gateway makes nothing of it.
    """
    manifest = suite.test_manifest(MANIFEST)
    kind.kubectl("apply", "--filename", manifest)
    try:
        deadline = time.monotonic() + 60
        while True:
            found = [
                route
                for host in istio.routes(*GATEWAY)
                for route in host.get("routes", ())
                if route["match"].get("path_separated_prefix") == PATH
            ]
            if found:
                return told(found[0])
            if time.monotonic() > deadline:
                raise ClusterError(f"the Envoy of {'/'.join(GATEWAY)} has no route for {PATH}")
            time.sleep(0.5)
    finally:
        kind.kubectl("delete", "--filename", manifest, "--ignore-not-found")


def told(route: Json) -> Told:
    """What a route of Envoy's says, in JSON."""
    weighted = route["route"]["weighted_clusters"]["clusters"]
    asked = [one["typed_per_filter_config"] for one in (route, *weighted) if "typed_per_filter_config" in one]
    return Told(
        tuple((one["name"], int(one["weight"])) for one in weighted),
        tuple(
            filters[FILTER]["overrides"]["grpc_service"]["envoy_grpc"]["cluster_name"]
            for filters in asked
            if FILTER in filters
        ),
        route,
    )


def mended(seen: Told, pickers: Mapping[str, tuple[str, str]]) -> Json:
    """An EnvoyFilter by which each weighted cluster has the picker of its own pool asked.

    `pickers` are the Services of the pools: pool to (namespace, name).
    """
    filters = seen.route["typed_per_filter_config"]
    route = {key: value for key, value in seen.route.items() if key != "typed_per_filter_config"}
    clusters = [
        {
            **one,
            "typed_per_filter_config": {
                **filters,
                FILTER: _asking(filters[FILTER], pickers[pool(one["name"])]),
            },
        }
        for one in route["route"]["weighted_clusters"]["clusters"]
    ]
    route["name"] = "each-pool-by-its-own-picker"
    route["route"] = {**route["route"], "weighted_clusters": {"clusters": clusters}}
    namespace, name = GATEWAY
    return {
        "apiVersion": "networking.istio.io/v1alpha3",
        "kind": "EnvoyFilter",
        "metadata": {"name": "each-pool-by-its-own-picker", "namespace": namespace},
        "spec": {
            "workloadSelector": {"labels": {"gateway.networking.k8s.io/gateway-name": name}},
            "configPatches": [
                {
                    "applyTo": "HTTP_ROUTE",
                    "match": {
                        "context": "GATEWAY",
                        "routeConfiguration": {"vhost": {"name": f"{HOST}:80"}},
                    },
                    "patch": {"operation": "INSERT_FIRST", "value": route},
                }
            ],
        },
    }


def pool(cluster: str) -> str:
    """The InferencePool that one of Istio's clusters stands for.

    Its host is a Service that Istio makes of the pool: NAME-ip-DIGEST (InferencePoolServiceName in
    pilot/pkg/config/kube/gateway).
    """
    host = cluster.split("|")[3]
    return host.split(".")[0].rpartition("-ip-")[0]


def _asking(settings: Json, picker: tuple[str, str]) -> Json:
    namespace, name = picker
    cluster = f"outbound|{PICKER_PORT}||{name}.{namespace}.svc.cluster.local"
    service = {"envoy_grpc": {"cluster_name": cluster}}
    return {**settings, "overrides": {**settings["overrides"], "grpc_service": service}}
