"""Which nodes are to have an endpoint's caches."""

from __future__ import annotations

from typing import Any

import pytest

from cacheprep.plan.observed import Node, Taint
from cacheprep.plan.targets import node_terms, targets, why_not

GPU = Taint("nvidia.com/gpu", "NoSchedule", "present")


def node(name: str = "a", **fields: Any) -> Node:
    return Node(name, f"uid-{name}", "boot", **fields)


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    needed = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return {"affinity": {"nodeAffinity": needed}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"ready": False}, "is NotReady"),
        ({"unschedulable": True}, "is cordoned"),
        ({"deleting": True}, "is being deleted"),
        ({"taints": (Taint("karpenter.sh/disrupted", "NoSchedule"),)}, "is about to go"),
        ({"taints": (Taint("ToBeDeletedByClusterAutoscaler", "NoSchedule"),)}, "is about to go"),
        ({"labels": {"kubernetes.io/os": "windows"}}, "runs windows"),
        ({"taints": (GPU,)}, "has the taint nvidia.com/gpu"),
    ],
)
def test_a_node_that_pods_could_not_be_put_on_now_is_no_target_and_says_why(
    fields: dict[str, Any], said: str
) -> None:
    assert said in why_not({}, node(**fields))


def test_a_node_about_to_go_is_none_also_for_pods_that_tolerate_everything() -> None:
    leaving = node(taints=(Taint("karpenter.sh/disrupted", "NoSchedule"),))
    assert why_not({"tolerations": [{"operator": "Exists"}]}, leaving)


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "nvidia.com/gpu", "value": "present"}, True),
        ({"key": "nvidia.com/gpu", "value": "other"}, False),
        ({"key": "nvidia.com/gpu"}, False),
        ({"key": "amd.com/gpu", "operator": "Exists"}, False),
        ({}, False),
    ],
)
def test_a_tainted_node_is_a_target_of_pods_that_tolerate_it(
    toleration: dict[str, Any], tolerated: bool
) -> None:
    found = targets({"tolerations": [toleration]}, [node(taints=(GPU,))])
    assert bool(found) is tolerated


def test_a_taint_that_only_prefers_keeps_nothing_off() -> None:
    assert targets({}, [node(taints=(Taint("spot", "PreferNoSchedule"),))])


@pytest.mark.parametrize(
    ("term", "fits"),
    [
        (expression("gpu", "In", "h100", "h200"), True),
        (expression("gpu", "In", "a10"), False),
        (expression("gpu", "NotIn", "a10"), True),
        (expression("absent", "NotIn", "a10"), True),
        (expression("gpu", "Exists"), True),
        (expression("absent", "Exists"), False),
        (expression("absent", "DoesNotExist"), True),
        (expression("memory", "Gt", "80"), True),
        (expression("memory", "Gt", "141"), False),
        (expression("memory", "Lt", "200"), True),
        (expression("gpu", "Gt", "80"), False),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]}, True),
        ({"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["b"]}]}, False),
        ({}, False),
    ],
)
def test_required_node_affinity_counts_as_the_scheduler_reads_it(term: dict[str, Any], fits: bool) -> None:
    labelled = node(labels={"gpu": "h100", "memory": "141"})
    assert bool(targets(required(term), [labelled])) is fits


def test_of_several_terms_one_is_enough_and_a_node_selector_holds_for_all() -> None:
    spec = {
        "nodeSelector": {"pool": "gpu"},
        **required(expression("zone", "In", "a"), expression("zone", "In", "b")),
    }
    nodes = [
        node("1", labels={"pool": "gpu", "zone": "b"}),
        node("2", labels={"pool": "cpu", "zone": "b"}),
        node("3", labels={"pool": "gpu", "zone": "c"}),
    ]
    assert [one.name for one in targets(spec, nodes)] == ["1"]
    assert len(node_terms(spec)) == 2


def test_a_node_of_an_architecture_that_the_image_is_not_made_for_is_no_target() -> None:
    arm = node(labels={"kubernetes.io/arch": "arm64"})
    assert targets({}, [arm])
    assert not targets({}, [arm], frozenset({"arm64"}))
    assert "arm64" in why_not({}, arm, frozenset({"arm64"}))
