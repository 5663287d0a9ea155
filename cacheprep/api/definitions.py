"""The CustomResourceDefinitions of all kinds, made from their models. Pure."""

from __future__ import annotations

from typing import Any, NamedTuple

import yaml

from cacheprep.api.caches import ModelDataCacheConfig, ModelImageCache, NodeModelCache
from cacheprep.api.endpoints import InferenceEndpointConfig, JumpStartModel
from cacheprep.api.model import Resource, rule
from cacheprep.api.names import GROUP, VERSION
from cacheprep.api.structural import schema_of

CATEGORY = "warmroute"
"""`kubectl get warmroute` shows objects of all kinds."""
HEAD = "# Made by `make crds` from cacheprep/api.\n"
"""First line of every file that is made."""


class Column(NamedTuple):
    """A column of `kubectl get`; priority 1 shows with -o wide only."""

    name: str
    path: str
    type: str = "string"
    priority: int = 0


AGE = Column("Age", ".metadata.creationTimestamp", "date")

_SERVING = (
    Column("Phase", ".status.phase"),
    Column("Target", ".status.target", "integer"),
    Column("Ready", ".status.ready", "integer"),
    Column("Pods", ".status.readyReplicas", "integer"),
    AGE,
    Column("Cache", ".status.activeCache", priority=1),
    Column("Drifted", '.status.conditions[?(@.type=="SourceDrifted")].status', priority=1),
)

NAME_RULE = rule(
    r"self.metadata.name.matches('^[a-z]([-a-z0-9]{0,48}[a-z0-9])?$')",
    "metadata.name must be at most 50 lower-case letters, digits and -, the first a letter, as of a Service",
)


class Kind(NamedTuple):
    """A kind, and how kubectl knows it."""

    model: type[Resource]
    short: str
    columns: tuple[Column, ...]
    rules: tuple[dict[str, Any], ...] = ()

    @property
    def file(self) -> str:
        """Name of the file with its definition."""
        return f"{GROUP}_{self.model.PLURAL}.yaml"


KINDS = (
    Kind(InferenceEndpointConfig, "iec", _SERVING, (NAME_RULE,)),
    Kind(JumpStartModel, "jsm", _SERVING, (NAME_RULE,)),
    Kind(
        ModelDataCacheConfig,
        "mdc",
        (
            Column("State", ".status.state"),
            Column("Target", ".status.target", "integer"),
            Column("Ready", ".status.ready", "integer"),
            AGE,
            Column("Bytes", ".status.totalBytes", "integer", 1),
            Column("Done", ".status.bytesDone", "integer", 1),
            Column("Rate", ".status.bytesPerSecond", "integer", 1),
            Column("ETA", ".status.etaSeconds", "integer", 1),
            Column("Key", ".status.key", priority=1),
            Column("Reason", '.status.conditions[?(@.type=="Cached")].reason', priority=1),
        ),
    ),
    Kind(
        ModelImageCache,
        "mic",
        (
            Column("Phase", ".status.phase"),
            Column("Cached", ".status.cached", "integer"),
            Column("Target", ".status.target", "integer"),
            AGE,
            Column("Image", ".spec.image", priority=1),
        ),
    ),
    Kind(
        NodeModelCache,
        "nmc",
        (
            Column("Observed", ".status.observedAt", "date"),
            Column("Caches", ".status.caches[*].state"),
            Column("Available", ".status.roots[*].availableBytes"),
            AGE,
        ),
    ),
)


def definition(kind: Kind) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind, as JSON."""
    model = kind.model
    fields = schema_of(model)["properties"]
    schema: dict[str, Any] = {
        "type": "object",
        "description": " ".join((model.__doc__ or "").split()),
        "required": ["spec"] if model.NAMESPACED else [],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": fields["spec"],
            "status": _without_defaults(fields["status"]),
        },
    }
    if not schema["required"]:
        del schema["required"]
    if kind.rules:
        schema["x-kubernetes-validations"] = list(kind.rules)
    names = {
        "kind": model.KIND,
        "listKind": f"{model.KIND}List",
        "plural": model.PLURAL,
        "singular": model.KIND.lower(),
        "shortNames": [kind.short],
        "categories": [CATEGORY],
    }
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{model.PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced" if model.NAMESPACED else "Cluster",
            "names": names,
            "versions": [version],
        },
    }


def files() -> dict[str, str]:
    """Every definition in YAML, by the name of its file; and the kustomization that names them all."""
    made = {kind.file: HEAD + _yaml(definition(kind)) for kind in KINDS}
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": sorted(made),
    }
    return {**made, "kustomization.yaml": HEAD + _yaml(kustomization)}


def _yaml(content: dict[str, Any]) -> str:
    text: str = yaml.dump(content, Dumper=_Dumper, sort_keys=False, width=110, allow_unicode=True)
    return text


class _Dumper(yaml.SafeDumper):
    """Writes no anchors: what is the same twice stands there twice."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _column(column: Column) -> dict[str, Any]:
    written = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**written, "priority": column.priority} if column.priority else written


def _without_defaults(schema: dict[str, Any]) -> dict[str, Any]:
    """A status says what was observed; the API server is to add nothing to it."""
    made = {key: value for key, value in schema.items() if key != "default"}
    if "properties" in made:
        made["properties"] = {name: _without_defaults(field) for name, field in made["properties"].items()}
    if "items" in made:
        made["items"] = _without_defaults(made["items"])
    return made
