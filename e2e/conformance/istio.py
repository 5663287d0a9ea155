"""Istio with a plain Envoy: a gateway that has an InferencePool's Endpoint Picker choose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e.cluster import debian, gateway, golang, images, kind, versions
from e2e.cluster.command import ClusterError, succeeds

NAMESPACE = "istio-system"
CLASS = "istio"
"""The GatewayClass."""

# The build tags are those of Istio's own Makefile.core.mk.
PILOT_DISCOVERY = golang.Program(
    "istio.io/istio/pilot/cmd/pilot-discovery", versions.ISTIO, ("vtprotobuf", "disable_pgv")
)
PILOT_AGENT = golang.Program(
    "istio.io/istio/pilot/cmd/pilot-agent",
    versions.ISTIO,
    ("agent", "disable_pgv", "grpcnotrace", "retrynotrace"),
)
_DOCKERFILES = Path(__file__).parent / "dockerfiles"
_RELEASES = {"istio-base": "base", "istiod": "istio-control/istio-discovery"}


def control_plane() -> str:
    """The image of istiod. Raises `ClusterError` or `golang.BuildError`."""
    files = {"pilot-discovery": golang.program(PILOT_DISCOVERY)}
    return images.build("pilot", _DOCKERFILES / "pilot.Dockerfile", files, {"BASE": debian.image()})


def proxy() -> str:
    """The image of the gateways' pods. Raises `ClusterError` or `golang.BuildError`."""
    files = {
        "envoy": gateway.envoy_binary(),
        "pilot-agent": golang.program(PILOT_AGENT),
        "envoy_bootstrap_tmpl.json": _source() / "tools/packaging/common/envoy_bootstrap.json",
    }
    return images.build("proxyv2", _DOCKERFILES / "proxyv2.Dockerfile", files, {"BASE": debian.image()})


def install() -> None:
    """Install the kinds of the Inference Extension and Istio, and wait until it takes Gateways.

    Raises `ClusterError` or `golang.BuildError`.
    """
    images.load([control_plane(), proxy()], [kind.CONTROL_PLANE])
    extension = golang.source("sigs.k8s.io/gateway-api-inference-extension", versions.INFERENCE_EXTENSION)
    kind.kubectl("apply", "--server-side", "--force-conflicts", "--kustomize", extension / "config/crd")
    values = {"istio-base": {}, "istiod": _values()}
    for release, chart in _RELEASES.items():
        kind.helm(
            *("upgrade", "--install", release, _source() / "manifests/charts" / chart),
            *("--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "3m"),
            values=values[release],
        )
    kind.kubectl("wait", f"gatewayclass/{CLASS}", "--for=condition=Accepted", "--timeout=120s")


def remove() -> None:
    """Remove Istio; the kinds of the Inference Extension stay. Raises `ClusterError`."""
    for release in reversed(_RELEASES):
        kind.helm("uninstall", release, "--namespace", NAMESPACE, "--ignore-not-found")
    kind.kubectl("delete", "namespace", NAMESPACE, "--ignore-not-found")


def runs() -> bool:
    """Whether it is installed."""
    return succeeds(
        *(golang.kubernetes(["kubectl"])[0], "--kubeconfig", kind.kubeconfig()),
        *("get", "deployment/istiod", f"--namespace={NAMESPACE}"),
    )


def routes(namespace: str, name: str) -> list[dict[str, Any]]:
    """The virtual hosts that the Envoy of a Gateway has now, as its admin interface shows them.

    Raises `ClusterError`.
    """
    said = kind.kubectl(
        *("exec", f"deployment/{name}-{CLASS}", f"--namespace={namespace}", "--"),
        *("pilot-agent", "request", "GET", "config_dump?resource=dynamic_route_configs"),
    )
    try:
        # Before what Envoy says pilot-agent logs a line.
        held = json.loads(said[said.index("{\n") :]).get("configs", [])
    except ValueError as error:
        raise ClusterError(f"Envoy of {namespace}/{name} says: {said[:500]}") from error
    return [host for one in held for host in one["route_config"].get("virtual_hosts", [])]


def trust(namespace: str, service: str) -> dict[str, Any]:
    """A DestinationRule: TLS to a picker that nobody issued a certificate. It holds for every namespace."""
    tls = {"mode": "SIMPLE", "insecureSkipVerify": True}
    return {
        "apiVersion": "networking.istio.io/v1",
        "kind": "DestinationRule",
        "metadata": {"name": service, "namespace": NAMESPACE},
        "spec": {"host": f"{service}.{namespace}.svc.cluster.local", "trafficPolicy": {"tls": tls}},
    }


def _source() -> Path:
    return golang.source("istio.io/istio", versions.ISTIO)


def _values() -> dict[str, Any]:
    small = {"requests": {"cpu": "20m", "memory": "64Mi"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    return {
        "image": control_plane(),
        "autoscaleEnabled": False,
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}},
        # Istio's own filters are not in a plain Envoy.
        "telemetry": {"enabled": False},
        "env": {
            "ENABLE_GATEWAY_API_INFERENCE_EXTENSION": "true",
            "PILOT_ENABLE_ALPN_FILTER": "false",
            "PILOT_ENABLE_METADATA_EXCHANGE": "false",
        },
        "global": {"proxy": {"image": proxy(), "resources": small}},
    }
