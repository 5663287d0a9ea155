"""What the router must be allowed to do for its configuration (docs/kubernetes.md), and whether it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from extproc.config import Config
from extproc.doctor.findings import Finding, Severity
from extproc.doctor.inventory import Reference, listed

VERBS = ("list", "watch")


class Right(NamedTuple):
    """Something that may be done, as an access review asks for it (`authorization.k8s.io/v1`)."""

    verb: str
    group: str
    resource: str
    namespace: str
    name: str = ""
    """Of the only object; empty: of all."""


class Without(NamedTuple):
    """What becomes of a router that lacks a right."""

    severity: Severity
    what: str


NO_ENGINES = Without(Severity.ERROR, "the router learns of no engines")
NO_NODES = Without(Severity.WARNING, "the router does not know which nodes have the weights (nodeCache)")
NO_SETTINGS = Without(Severity.ERROR, "the pool's settings in Kubernetes are not read (settingsFrom)")


def needed(config: Config, namespace: str) -> dict[Right, Without]:
    """The rights that these settings need; `namespace` is the router's own."""
    found: dict[Right, Without] = {}

    def follow(without: Without, group: str, resource: str, where: str | None, name: str = "") -> None:
        for verb in VERBS:
            found.setdefault(Right(verb, group, resource, where or namespace, name), without)

    for pool in config.pools:
        service, inference_pool = pool.endpoints.service, pool.endpoints.inference_pool
        if service is not None:
            follow(NO_ENGINES, "discovery.k8s.io", "endpointslices", service.namespace)
        if inference_pool is not None:
            follow(
                NO_ENGINES,
                "inference.networking.k8s.io",
                "inferencepools",
                inference_pool.namespace,
                inference_pool.name,
            )
        if (pods := inference_pool or pool.endpoints.pods) is not None:
            follow(NO_ENGINES, "", "pods", pods.namespace)
            if pool.node_cache:
                follow(NO_NODES, "discovery.k8s.io", "endpointslices", pods.namespace)
        if pool.settings_from is not None:
            settings = pool.settings_from.config_map
            follow(NO_SETTINGS, "", "configmaps", settings.namespace, settings.name)
    return found


def check(
    rights: Mapping[Right, Without], allowed: Mapping[Right, bool], account: Reference
) -> Iterator[Finding]:
    """Which of the rights that were asked about this ServiceAccount lacks."""
    lacking: dict[Right, list[str]] = {}
    for right in rights:
        if not allowed.get(right, True):
            lacking.setdefault(right._replace(verb=""), []).append(right.verb)
    for right, verbs in lacking.items():
        without = rights[right._replace(verb=verbs[0])]
        group = right.group or '""'
        named = f", resourceNames: [{right.name}]" if right.name else ""
        rule = f"{{apiGroups: [{group}], resources: [{right.resource}]{named}, verbs: [list, watch]}}"
        yield Finding(
            "not-allowed",
            without.severity,
            f"ServiceAccount {account}",
            f"may not {listed(verbs)} {right.resource} in namespace {right.namespace}: {without.what}",
            f"bind it to a Role in namespace {right.namespace} with the rule {rule}",
        )
