"""EndpointSlices: what one says, and what all those of a Service say together. Without IO.

The rules are those of `discovery.k8s.io/v1` (Kubernetes API reference, EndpointSlice) and of kube-proxy, so
that an endpoint is one here when it is one for the Service's cluster IP.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import Literal, NamedTuple

from extproc.address import parse_endpoint
from extproc.pool.discovery.found import Place
from extproc.pool.discovery.kubernetes import Json, Resource

ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices")
SERVICE_NAME = "kubernetes.io/service-name"
"""Label of a slice with the Service that it belongs to."""
MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
"""Label of a slice with who writes it."""

Family = Literal["IPv4", "IPv6"]


class State(IntEnum):
    """How much of an endpoint an address is, rising."""

    ABSENT = 0
    LEAVING = 1
    """Told to stop, and still serving."""
    READY = 2


class Member(NamedTuple):
    """One endpoint of a slice."""

    address: str
    """Canonical `ip:port`."""
    family: str
    state: State
    uid: str
    """Of its pod; empty if it is none."""
    place: Place


class Slice(NamedTuple):
    """What matters of an EndpointSlice."""

    members: tuple[Member, ...] = ()
    """On the port that was asked for; empty where the slice has not got it."""
    lacks_port: bool = False
    """It has endpoints, but not the port that was asked for."""
    other_ports: tuple[str, ...] = ()
    """Then those that it has, as people write them."""
    left_out: tuple[str, ...] = ()
    """What was not understood, in words."""


def slice_of(item: Json, port: str | int) -> Slice:
    """What an EndpointSlice's JSON says of a port: the name that the Service gives it, or the number on which
    the endpoints listen. Raises ValueError for one that holds no IP addresses.
    """
    family = item["addressType"]
    if family not in ("IPv4", "IPv6"):
        raise ValueError(f"addressType {family}: endpoints are IP addresses")
    endpoints = item.get("endpoints") or ()
    ports = item.get("ports") or ()
    number = next((one["port"] for one in ports if _is(one, port)), None)
    if number is None:
        return Slice(lacks_port=True, other_ports=tuple(map(_written, ports))) if endpoints else Slice()
    members, left_out = [], []
    for endpoint in endpoints:
        # One address each: clients of the API use the first and ignore what follows it.
        host = endpoint["addresses"][0]
        try:
            address = parse_endpoint(f"[{host}]:{number}" if family == "IPv6" else f"{host}:{number}")
        except ValueError as error:
            left_out.append(f"endpoint {host}: {error}")
            continue
        pod = endpoint.get("targetRef") or {}
        pod = pod if pod.get("kind") == "Pod" else {}
        place = Place(pod.get("name") or "", endpoint.get("nodeName") or "", endpoint.get("zone") or "")
        members.append(Member(address, family, _state(endpoint), pod.get("uid") or "", place))
    return Slice(tuple(members), left_out=tuple(left_out))


def serving(slices: Iterable[Slice], preferred: Family = "IPv4") -> dict[str, Member]:
    """The endpoints that requests may go to, by address in order.

    Where slices disagree on an address, the one that has more of it is right: a slice that an endpoint has
    moved out of may come later. A pod with addresses of both families is one endpoint, at the `preferred`
    one. Those that are told to stop are taken only if nothing else is left, as kube-proxy does (KEP-1669).
    """
    best: dict[str, Member] = {}
    for one in slices:
        for member in one.members:
            held = best.get(member.address)
            # The uid decides a tie, so that every replica finds the same.
            if held is None or (member.state, member.uid) > (held.state, held.uid):
                best[member.address] = member
    most = max((member.state for member in best.values()), default=State.ABSENT)
    if most is State.ABSENT:
        return {}
    usable = {address: best[address] for address in sorted(best) if best[address].state == most}
    in_both = {member.uid for member in usable.values() if member.uid and member.family == preferred}
    if len(in_both) == len(usable):
        return usable
    return {
        address: member
        for address, member in usable.items()
        if member.family == preferred or member.uid not in in_both
    }


def ready_pods(item: Json) -> dict[str, bool]:
    """Whether each pod of an EndpointSlice's JSON is ready there, by uid, on whatever port."""
    return {
        pod["uid"]: _state(endpoint) is State.READY
        for endpoint in item.get("endpoints") or ()
        if (pod := endpoint.get("targetRef") or {}).get("kind") == "Pod" and pod.get("uid")
    }


def _is(port: Json, wanted: str | int) -> bool:
    if port.get("port") is None or (port.get("protocol") or "TCP") != "TCP":
        return False
    return bool(port["port"] == wanted if isinstance(wanted, int) else (port.get("name") or "") == wanted)


def _written(port: Json) -> str:
    name, number, protocol = port.get("name"), port.get("port"), port.get("protocol") or "TCP"
    said = f"{name} ({number})" if name else str(number)
    return said if protocol == "TCP" else f"{said} {protocol}"


def _state(endpoint: Json) -> State:
    """By its conditions, of which nil means true, but for terminating, where it means false."""
    conditions = endpoint.get("conditions") or {}
    if conditions.get("ready") is not False:
        return State.READY
    # Serving is newer than ready, and who does not say it says nothing of endpoints that stop.
    leaving = conditions.get("terminating") is True and conditions.get("serving") is not False
    return State.LEAVING if leaving else State.ABSENT
