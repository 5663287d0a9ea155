"""The kinds that manifests/ is made of, as their projects publish them in Go modules."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from e2e.cluster import golang, versions

Definition = dict[str, Any]


class Source(NamedTuple):
    """Where a module keeps its definitions, and which of them are wanted."""

    module: str
    version: str
    files: tuple[str, ...]
    plurals: frozenset[str]


_CRD_CHART = "charts/gateway-crds-helm/templates"

SOURCES = (
    Source(
        "github.com/envoyproxy/gateway",
        versions.ENVOY_GATEWAY,
        (
            # That of the Gateway API itself comes with it, in the version that it is made for.
            f"{_CRD_CHART}/standard-gatewayapi-crds.yaml",
            f"{_CRD_CHART}/generated/gateway.envoyproxy.io_backendtrafficpolicies.yaml",
            f"{_CRD_CHART}/generated/gateway.envoyproxy.io_clienttrafficpolicies.yaml",
            f"{_CRD_CHART}/generated/gateway.envoyproxy.io_envoyextensionpolicies.yaml",
        ),
        frozenset(
            {
                "backendtrafficpolicies",
                "clienttrafficpolicies",
                "envoyextensionpolicies",
                "gatewayclasses",
                "gateways",
                "grpcroutes",
                "httproutes",
                "referencegrants",
            }
        ),
    ),
    Source(
        "sigs.k8s.io/gateway-api-inference-extension",
        versions.INFERENCE_EXTENSION,
        ("config/crd/bases/inference.networking.k8s.io_inferencepools.yaml",),
        frozenset({"inferencepools"}),
    ),
    Source(
        "istio.io/api",
        versions.ISTIO_API,
        ("kubernetes/customresourcedefinitions.gen.yaml",),
        frozenset({"destinationrules"}),
    ),
    Source(
        "github.com/prometheus-operator/prometheus-operator",
        versions.PROMETHEUS_OPERATOR,
        (
            "example/prometheus-operator-crd/monitoring.coreos.com_podmonitors.yaml",
            "example/prometheus-operator-crd/monitoring.coreos.com_prometheusrules.yaml",
        ),
        frozenset({"podmonitors", "prometheusrules"}),
    ),
)

FILE = "kinds.json"


def collect(target: Path) -> None:
    """Leave the definitions in the directory `target`, unless they are there in these versions.

    Raises `golang.BuildError`.
    """
    wanted = {source.module: source.version for source in SOURCES}
    file = target / FILE
    if file.exists() and json.loads(file.read_text())["versions"] == wanted:
        return
    found = [definition for source in SOURCES for definition in _definitions(source)]
    file.write_text(json.dumps({"versions": wanted, "definitions": found}))


def read(directory: Path) -> list[Definition]:
    """The definitions that `collect` has left there."""
    definitions: list[Definition] = json.loads((directory / FILE).read_text())["definitions"]
    return definitions


def _definitions(source: Source) -> Iterator[Definition]:
    root = golang.source(source.module, source.version)
    found = set()
    for name in source.files:
        # A chart's template says in its first and last line alone whether it is wanted.
        lines = (root / name).read_text().splitlines(keepends=True)
        text = "".join(line for line in lines if not line.startswith("{{"))
        for definition in yaml.load_all(text, yaml.CSafeLoader):
            if not definition or definition["kind"] != "CustomResourceDefinition":
                continue
            if (plural := definition["spec"]["names"]["plural"]) in source.plurals:
                found.add(plural)
                yield definition
    if lacking := source.plurals - found:
        raise golang.BuildError(f"{source.module}@{source.version} has no {', '.join(sorted(lacking))}")
