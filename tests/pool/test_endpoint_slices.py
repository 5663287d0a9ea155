"""Which addresses of EndpointSlices are endpoints. With a real API server: tests/apiserver."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extproc.address import parse_endpoint
from extproc.pool.discovery.endpoint_slices import Family, Slice, State, ready_pods, serving, slice_of
from extproc.pool.discovery.found import Place

HTTP = {"name": "http", "port": 8000, "protocol": "TCP"}


def endpoint(address: str = "10.0.0.1", pod: str = "", **conditions: bool | None) -> dict[str, Any]:
    written: dict[str, Any] = {"addresses": [address]}
    if conditions:
        written["conditions"] = conditions
    if pod:
        written["targetRef"] = {"kind": "Pod", "name": pod, "uid": f"uid-{pod}"}
    return written


def item(*endpoints: dict[str, Any], ports: object = (HTTP,), family: str = "IPv4") -> dict[str, Any]:
    return {"metadata": {"uid": "1"}, "addressType": family, "endpoints": endpoints, "ports": ports}


def addresses(*items: dict[str, Any], port: str | int = "http", preferred: Family = "IPv4") -> list[str]:
    return list(serving([slice_of(one, port) for one in items], preferred))


# --- Conditions ---


@pytest.mark.parametrize(
    ("conditions", "state"),
    [
        ({}, State.READY),
        ({"ready": None}, State.READY),
        ({"ready": True}, State.READY),
        ({"ready": None, "serving": None, "terminating": None}, State.READY),
        ({"ready": False}, State.ABSENT),
        ({"ready": False, "serving": True}, State.ABSENT),
        ({"ready": False, "serving": True, "terminating": None}, State.ABSENT),
        ({"ready": False, "serving": True, "terminating": False}, State.ABSENT),
        ({"ready": False, "serving": True, "terminating": True}, State.LEAVING),
        ({"ready": False, "serving": None, "terminating": True}, State.LEAVING),
        ({"ready": False, "serving": False, "terminating": True}, State.ABSENT),
        # A Service with publishNotReadyAddresses asks for it.
        ({"ready": True, "serving": False, "terminating": True}, State.READY),
    ],
)
def test_an_endpoint_is_what_its_conditions_say_where_nil_is_true_but_for_terminating(
    conditions: dict[str, bool | None], state: State
) -> None:
    (member,) = slice_of(item({**endpoint(), "conditions": conditions}), "http").members
    assert member.state is state


def test_those_told_to_stop_serve_only_while_nothing_else_does() -> None:
    leaving = endpoint("10.0.0.1", ready=False, serving=True, terminating=True)
    assert addresses(item(leaving, endpoint("10.0.0.2"))) == ["10.0.0.2:8000"]
    assert addresses(item(leaving, endpoint("10.0.0.2", ready=False))) == ["10.0.0.1:8000"]


# --- Ports ---


def test_a_port_is_found_by_the_name_that_the_service_gives_it_or_by_its_number() -> None:
    ports = [{"name": "metrics", "port": 9090}, {"name": "http", "port": 8000}]
    assert addresses(item(endpoint(), ports=ports), port="http") == ["10.0.0.1:8000"]
    assert addresses(item(endpoint(), ports=ports), port=9090) == ["10.0.0.1:9090"]


def test_the_only_port_of_a_service_need_not_have_a_name() -> None:
    assert addresses(item(endpoint(), ports=[{"name": "", "port": 8000}]), port=8000) == ["10.0.0.1:8000"]
    assert addresses(item(endpoint(), ports=[{"port": 8000}]), port=8000) == ["10.0.0.1:8000"]


def test_one_name_may_mean_other_numbers_in_other_slices() -> None:
    """A targetPort with a name is a matter of each pod."""
    other = item(endpoint("10.0.0.2"), ports=[{"name": "http", "port": 8080}])
    assert addresses(item(endpoint()), other) == ["10.0.0.1:8000", "10.0.0.2:8080"]


@pytest.mark.parametrize(
    ("ports", "said"),
    [
        ([{"name": "grpc", "port": 9000}, {"port": 7}], ("grpc (9000)", "7")),
        ([{"name": "http", "port": 8000, "protocol": "UDP"}], ("http (8000) UDP",)),
        ([{"name": "http", "port": None}], ("http (None)",)),
        ([], ()),
        (None, ()),
    ],
)
def test_a_slice_without_the_port_has_no_endpoints_and_says_which_it_has(
    ports: object, said: tuple[str, ...]
) -> None:
    assert slice_of(item(endpoint(), ports=ports), "http") == Slice(lacks_port=True, other_ports=said)


def test_a_slice_without_endpoints_need_not_have_ports() -> None:
    """Such as Kubernetes writes for a Service whose selector finds nothing."""
    written = {"metadata": {"uid": "1"}, "addressType": "IPv4", "endpoints": None, "ports": None}
    assert slice_of(written, "http") == Slice()


# --- Several slices ---


def test_all_slices_of_a_service_are_merged_in_the_order_of_addresses() -> None:
    assert addresses(item(endpoint("10.0.0.2")), item(endpoint("10.0.0.3"), endpoint("10.0.0.1"))) == [
        "10.0.0.1:8000",
        "10.0.0.2:8000",
        "10.0.0.3:8000",
    ]


def test_an_address_in_two_slices_is_one_endpoint_and_ready_if_either_says_so() -> None:
    slices = [item(endpoint(ready=False)), item(endpoint()), item(endpoint(ready=False))]
    for order in itertools.permutations(slices):
        assert addresses(*order) == ["10.0.0.1:8000"]


def test_addresses_of_both_families_are_endpoints() -> None:
    six = item(endpoint("FD00:0::1"), family="IPv6")
    assert addresses(item(endpoint()), six) == ["10.0.0.1:8000", "[fd00::1]:8000"]


def test_a_pod_with_an_address_of_each_family_is_one_endpoint_at_the_preferred_one() -> None:
    away = endpoint("10.0.0.2", pod="b", ready=False)
    four = item(endpoint("10.0.0.1", pod="a"), away, endpoint("10.0.0.9"))
    six = item(endpoint("fd00::1", pod="a"), endpoint("fd00::3", pod="c"), endpoint("fd00::9"), family="IPv6")
    assert addresses(four, six) == ["10.0.0.1:8000", "10.0.0.9:8000", "[fd00::3]:8000", "[fd00::9]:8000"]
    assert addresses(four, six, preferred="IPv6") == [
        "10.0.0.9:8000",
        "[fd00::1]:8000",
        "[fd00::3]:8000",
        "[fd00::9]:8000",
    ]


def test_names_are_no_addresses() -> None:
    with pytest.raises(ValueError, match="addressType FQDN: endpoints are IP addresses"):
        slice_of(item(endpoint("engine.example"), family="FQDN"), "http")


def test_an_address_that_nobody_can_connect_to_is_left_out_and_the_others_are_not() -> None:
    read = slice_of(item(endpoint("0.0.0.0"), endpoint("10.0.0.2")), "http")
    assert list(serving([read])) == ["10.0.0.2:8000"]
    (said,) = read.left_out
    assert said.startswith("endpoint 0.0.0.0: ")


# --- What else is said of an endpoint ---


def test_an_endpoint_says_its_pod_node_and_zone() -> None:
    written = {**endpoint(pod="a"), "nodeName": "node-1", "zone": "zone-a"}
    (member,) = slice_of(item(written), "http").members
    assert (member.uid, member.place) == ("uid-a", Place("a", "node-1", "zone-a"))


def test_an_endpoint_that_is_no_pod_has_no_uid() -> None:
    written = {**endpoint(), "targetRef": {"kind": "VirtualMachine", "name": "a", "uid": "1"}}
    (member,) = slice_of(item(written), "http").members
    assert (member.uid, member.place) == ("", Place())


def test_readiness_by_pod_asks_for_no_port() -> None:
    written = item(endpoint(pod="a"), endpoint(pod="b", ready=False), endpoint(), ports=None)
    assert ready_pods(written) == {"uid-a": True, "uid-b": False}


# --- Whatever they say ---

_CONDITION = st.sampled_from([None, True, False])
_ADDRESS = st.ip_addresses(v=4) | st.ip_addresses(v=6)


@given(
    st.lists(
        st.lists(
            st.tuples(_ADDRESS, _CONDITION, _CONDITION, _CONDITION, st.integers(0, 3)),
            max_size=6,
        ),
        max_size=4,
    ),
    st.randoms(use_true_random=False),
)
def test_what_serves_does_not_depend_on_the_order_of_slices_and_never_names_what_is_away(
    written: list[list[tuple[Any, Any, Any, Any, int]]], draw: Any
) -> None:
    slices = []
    for version, family in ((4, "IPv4"), (6, "IPv6")):
        for members in written:
            endpoints = [
                endpoint(str(address), pod=f"pod-{pod}", ready=ready, serving=serves, terminating=stops)
                for address, ready, serves, stops, pod in members
                if address.version == version
            ]
            slices.append(slice_of(item(*endpoints, family=family), "http"))
    found = serving(slices)
    assert list(found) == sorted(found) == [parse_endpoint(address) for address in found]
    states = {
        address: max(one.state for each in slices for one in each.members if one.address == address)
        for address in found
    }
    assert State.ABSENT not in states.values()
    assert len(set(states.values())) <= 1
    draw.shuffle(slices)
    assert list(serving(slices)) == list(found)
