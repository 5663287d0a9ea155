"""Target nodes: those that pods of an endpoint could be put on, now."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cacheprep.plan.observed import Node, Taint

JsonObject = Mapping[str, Any]

_KEEPS_OFF = frozenset({"NoSchedule", "NoExecute"})
_DISRUPTED = frozenset(
    {
        "karpenter.sh/disrupted",
        "ToBeDeletedByClusterAutoscaler",
        "node.kubernetes.io/out-of-service",
        "node.cloudprovider.kubernetes.io/shutdown",
    }
)
"""Taints of nodes that are about to go, whatever the pods tolerate."""
_OS, ARCHITECTURE = "kubernetes.io/os", "kubernetes.io/arch"


def targets(
    pod_spec: JsonObject, nodes: Iterable[Node], unfit: frozenset[str] = frozenset()
) -> tuple[Node, ...]:
    """The nodes that are to have the caches of pods of this spec, by name.

    Args:
        pod_spec: a PodSpec of Kubernetes.
        nodes: all nodes.
        unfit: architectures (`kubernetes.io/arch`) that the images are not made for.
    """
    fitting = (node for node in nodes if not why_not(pod_spec, node, unfit))
    return tuple(sorted(fitting, key=lambda node: node.name))


def why_not(pod_spec: JsonObject, node: Node, unfit: frozenset[str] = frozenset()) -> str:
    """Why a node is no target, in words; "" if it is one."""
    if node.deleting:
        return "is being deleted"
    if not node.ready:
        return "is NotReady"
    if node.unschedulable:
        return "is cordoned"
    leaving = next((taint.key for taint in node.taints if taint.key in _DISRUPTED), None)
    if leaving is not None:
        return f"is about to go (taint {leaving})"
    if node.labels.get(_OS, "linux") != "linux":
        return f"runs {node.labels[_OS]}"
    architecture = node.labels.get(ARCHITECTURE)
    if architecture in unfit:
        return f"has the architecture {architecture}, which the image is not made for"
    if not _selected(pod_spec, node):
        return "is not selected by nodeSelector and node affinity"
    tolerations = pod_spec.get("tolerations") or ()
    kept_off = next((taint for taint in node.taints if not _tolerated(taint, tolerations)), None)
    return f"has the taint {kept_off.key}, which the pods do not tolerate" if kept_off else ""


def node_terms(pod_spec: JsonObject) -> list[JsonObject]:
    """What the pods require of nodes as nodeSelectorTerms, of which one must fit; none: any node will do."""
    selector = pod_spec.get("nodeSelector") or {}
    wanted = [{"key": key, "operator": "In", "values": [value]} for key, value in sorted(selector.items())]
    terms = _required(pod_spec)
    if not terms:
        return [{"matchExpressions": wanted}] if wanted else []
    return [{**term, "matchExpressions": [*wanted, *(term.get("matchExpressions") or ())]} for term in terms]


def _required(pod_spec: JsonObject) -> Sequence[JsonObject]:
    affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    terms: Sequence[JsonObject] = required.get("nodeSelectorTerms") or ()
    return terms


def _selected(pod_spec: JsonObject, node: Node) -> bool:
    terms = node_terms(pod_spec)
    return not terms or any(_fits(term, node) for term in terms)


def _fits(term: JsonObject, node: Node) -> bool:
    expressions = term.get("matchExpressions") or ()
    fields = term.get("matchFields") or ()
    # A term that says nothing matches nothing: k8s.io/api/core/v1, NodeSelectorTerm.
    if not expressions and not fields:
        return False
    return all(_holds(one, node.labels.get(one["key"])) for one in expressions) and all(
        one["key"] == "metadata.name" and _holds(one, node.name) for one in fields
    )


def _holds(requirement: JsonObject, value: str | None) -> bool:
    """A NodeSelectorRequirement, k8s.io/api/core/v1."""
    values: Sequence[str] = requirement.get("values") or ()
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            try:
                have, bound = int(value or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return have > bound if operator == "Gt" else have < bound
        case _:
            return False


def _tolerated(taint: Taint, tolerations: Iterable[JsonObject]) -> bool:
    return taint.effect not in _KEEPS_OFF or any(_tolerates(one, taint) for one in tolerations)


def _tolerates(toleration: JsonObject, taint: Taint) -> bool:
    """A Toleration, k8s.io/api/core/v1: without a key and with Exists it tolerates everything."""
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if toleration.get("effect") and toleration["effect"] != taint.effect:
        return False
    if not key:
        return bool(operator == "Exists")
    if key != taint.key:
        return False
    return operator == "Exists" or (toleration.get("value") or "") == taint.value
