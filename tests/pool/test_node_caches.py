"""What cacheprep's EndpointSlices say of the nodes of a pool's pods."""

from __future__ import annotations

from typing import Any

from cacheprep.api import names
from extproc.config import ConfigMapConfig
from extproc.pool.discovery.node_caches import MANAGER, SUFFIX, Prepared, node_caches, prepared_of


def test_a_pod_that_is_ready_there_is_on_a_warm_node_and_any_other_on_a_cold_one() -> None:
    slices = [Prepared("llama-warm", {"a": True, "b": False}), Prepared("llama-warm", {"c": True})]
    assert node_caches({"a", "b", "c", "d"}, slices, "llama") == {
        "a": "warm",
        "b": "cold",
        "c": "warm",
        "d": "cold",
    }


def test_a_pod_in_two_slices_is_warm_if_either_says_so() -> None:
    slices = [Prepared("llama-warm", {"a": False}), Prepared("llama-warm", {"a": True})]
    assert node_caches({"a"}, slices, "llama") == node_caches({"a"}, slices[::-1], "llama") == {"a": "warm"}


def test_without_such_slices_nothing_is_known() -> None:
    assert node_caches({"a"}, [], "llama") == {}
    assert node_caches({"a"}, [Prepared("other-warm", {"a": True})], "llama") == {}


def test_slices_without_any_pod_say_that_all_nodes_are_cold() -> None:
    assert node_caches({"a"}, [Prepared("llama-warm", {})], "llama") == {"a": "cold"}


def test_without_a_service_those_count_that_list_any_of_the_pods() -> None:
    others = [Prepared("other-warm", {"x": True}), Prepared("empty-warm", {})]
    assert node_caches({"a", "b"}, others) == {}
    ours = [Prepared("llama-warm", {"a": False}), Prepared("llama-warm", {"c": True})]
    assert node_caches({"a", "b", "c"}, [*others, *ours]) == {"a": "cold", "b": "cold", "c": "warm"}


def test_only_readiness_counts_and_nil_means_ready() -> None:
    def endpoint(pod: str, **conditions: bool) -> dict[str, Any]:
        return {"addresses": ["10.0.0.1"], "conditions": conditions, "targetRef": {"kind": "Pod", "uid": pod}}

    written = {
        "metadata": {"uid": "1", "labels": {"kubernetes.io/service-name": "llama-warm"}},
        "addressType": "IPv4",
        "endpoints": [endpoint("a"), endpoint("b", ready=False, serving=True), endpoint("c", ready=True)],
        "ports": [],
    }
    assert prepared_of(written) == Prepared("llama-warm", {"a": True, "b": False, "c": True})


def test_cacheprep_publishes_under_the_names_that_the_router_looks_for() -> None:
    assert (names.MANAGER, names.WARM_SUFFIX) == (MANAGER, SUFFIX)
    assert ConfigMapConfig(name="llama" + names.ROUTING_SUFFIX).key == names.SETTINGS_KEY
