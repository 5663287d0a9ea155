"""Which pods are endpoints, by their JSON. With a real API server: tests/apiserver."""

from __future__ import annotations

import ipaddress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.address import parse_endpoint
from extproc.pool.discovery.inference_pool import (
    ACTIVE_PORTS,
    NOT_SAID,
    Members,
    endpoints_of,
    members_of,
    pod_of,
)


def pod(
    address: str | None = "10.0.0.1",
    ready: str = "True",
    *,
    stopping: bool = False,
    active: str | None = None,
) -> dict[str, Any]:
    metadata: dict[str, Any] = {"uid": "1", "name": "a"}
    if stopping:
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if active is not None:
        metadata["annotations"] = {ACTIVE_PORTS: active}
    conditions = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": ready}]
    return {"metadata": metadata, "status": {"podIP": address, "conditions": conditions}}


@pytest.mark.parametrize(
    ("written", "endpoints"),
    [
        (pod(), ("10.0.0.1:8000", "10.0.0.1:8001")),
        (pod("FD00:0::1"), ("[fd00::1]:8000", "[fd00::1]:8001")),
        (pod(active="8001"), ("10.0.0.1:8001",)),
        (pod(active=" 8000 ,x,,-1,9000"), ("10.0.0.1:8000",)),
        (pod(active=""), ()),
        (pod(ready="False"), ()),
        (pod(ready="Unknown"), ()),
        (pod(stopping=True), ()),
        (pod(None), ()),
        ({"metadata": {"uid": "1"}}, ()),
        ({"metadata": {"uid": "1"}, "status": {"podIP": "10.0.0.1", "conditions": None}}, ()),
    ],
)
def test_a_pod_is_an_endpoint_on_each_of_its_ports_while_it_is_ready_and_not_stopping(
    written: dict[str, Any], endpoints: tuple[str, ...]
) -> None:
    assert tuple(endpoints_of((8000, 8001), [pod_of(written)])) == endpoints


@pytest.mark.parametrize("address", ["0.0.0.0", "224.0.0.1", "engine-1", "10.0.0.1:80", "::"])
def test_a_pod_with_an_address_that_nobody_can_connect_to_is_refused(address: str) -> None:
    with pytest.raises(ValueError):
        pod_of(pod(address))


@given(
    st.lists(st.tuples(st.ip_addresses(v=4) | st.ip_addresses(v=6), st.booleans()), max_size=8),
    st.lists(st.integers(1, 65535), min_size=1, max_size=3, unique=True),
)
def test_endpoints_do_not_depend_on_the_order_of_the_pods_and_are_canonical(
    pods: list[tuple[ipaddress.IPv4Address | ipaddress.IPv6Address, bool]], ports: list[int]
) -> None:
    usable = [one for one in pods if not one[0].is_multicast and not one[0].is_unspecified]
    read = [pod_of(pod(str(address), str(ready))) for address, ready in usable]
    endpoints = tuple(endpoints_of(ports, read))
    assert endpoints == tuple(endpoints_of(ports[::-1], read[::-1]))
    assert endpoints == tuple(parse_endpoint(endpoint) for endpoint in endpoints)
    assert len(endpoints) == len({address for address, ready in usable if ready}) * len(ports)


def test_an_inference_pool_selects_by_labels_and_ports() -> None:
    spec = {"selector": {"matchLabels": {"b": "2", "a": "1"}}, "targetPorts": [{"number": 1}, {"number": 2}]}
    assert members_of({"spec": spec}) == Members("a=1,b=2", (1, 2))


@pytest.mark.parametrize(
    "pool",
    [
        {},
        {"spec": None},
        {"spec": {"selector": {"matchLabels": {}}, "targetPorts": [{"number": 1}]}},
        {"spec": {"selector": {"matchLabels": {"a": "1"}}, "targetPorts": []}},
        {"spec": {"selector": {"matchLabels": ["a"]}, "targetPorts": [{"number": 1}]}},
        {"spec": {"selector": {"matchLabels": {"a": "1"}}, "targetPorts": [{"number": "x"}]}},
        {"spec": {"selector": {"a": "1"}, "targetPortNumber": 1}},
    ],
)
def test_an_inference_pool_of_another_shape_selects_nothing_that_is_known(pool: dict[str, Any]) -> None:
    assert members_of(pool) is NOT_SAID
