"""Endpoints from Kubernetes: the ready pods that an InferencePool, or a label selector, names.

The InferencePool says which pods and which of their ports (`inference.networking.k8s.io/v1` of the Gateway
API Inference Extension). A pod's readiness is taken from the pod itself, as that extension does: an endpoint
leaves the moment its pod is told to stop, before any EndpointSlice says so.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

import structlog

from extproc.address import parse_endpoint
from extproc.config import InferencePoolConfig, PodsConfig
from extproc.pool.discovery.kubernetes import (
    FIRST_BACK_OFF,
    LONGEST_BACK_OFF,
    ApiError,
    Cluster,
    Json,
    Listing,
    connected,
    follow,
)

API = "/apis/inference.networking.k8s.io/v1"
ACTIVE_PORTS = "inference.networking.k8s.io/active-ports"
"""Annotation of a pod with those of the target ports that it serves, with commas (same extension)."""

OnChange = Callable[[tuple[str, ...]], None]

_log = structlog.get_logger(__name__)


class Members(NamedTuple):
    """Which pods are endpoints, and on which ports."""

    selector: str
    """A label selector in text, as in `labelSelector`."""
    ports: tuple[int, ...]


class Pod(NamedTuple):
    """What matters of a pod."""

    address: str
    """IP address; empty until it has one."""
    ready: bool
    """Ready, and not told to stop."""
    ports: frozenset[int] | None
    """Those of the target ports that it serves; None: all."""


NOT_SAID = Members("", ())


def members_of(pool: Json) -> Members:
    """What an InferencePool selects; `NOT_SAID` if it does not say, in a way that is understood."""
    try:
        labels = pool["spec"]["selector"]["matchLabels"]
        ports = tuple(int(port["number"]) for port in pool["spec"]["targetPorts"])
        selector = ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
    except (KeyError, TypeError, ValueError, AttributeError):
        return NOT_SAID
    return Members(selector, ports) if selector and ports else NOT_SAID


def pod_of(pod: Json) -> Pod:
    """What matters of a pod's JSON. Raises ValueError if its address is none that can be connected to."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    ready = any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )
    active = (metadata.get("annotations") or {}).get(ACTIVE_PORTS)
    address = status.get("podIP") or ""
    if address:
        _endpoint(address, 1)
    return Pod(
        address,
        ready and not metadata.get("deletionTimestamp"),
        None
        if active is None
        else frozenset(int(port) for port in active.split(",") if port.strip().isdecimal()),
    )


def endpoints_of(ports: Collection[int], pods: Iterable[Pod]) -> tuple[str, ...]:
    """The endpoints of these pods in a fixed order; canonical (see `extproc.address.parse_endpoint`)."""
    return tuple(
        sorted(
            {
                _endpoint(pod.address, port)
                for pod in pods
                if pod.ready and pod.address
                for port in ports
                if pod.ports is None or port in pod.ports
            }
        )
    )


def _endpoint(address: str, port: int) -> str:
    return parse_endpoint(f"[{address}]:{port}" if ":" in address else f"{address}:{port}")


async def watch(
    source: InferencePoolConfig | PodsConfig, on_change: OnChange, draw: random.Random | None = None
) -> None:
    """Call `on_change` with the endpoints now and whenever they change, until cancelled.

    Until the InferencePool exists it is not called; once that is deleted, with no endpoints. `draw` spreads
    attempts while Kubernetes cannot be reached.
    """
    draw = random.Random() if draw is None else draw
    back_off, complaint = FIRST_BACK_OFF, ""
    while True:
        try:
            async with connected() as cluster:
                await _watch(cluster, source, on_change, draw)
        except ApiError as error:
            if str(error) != complaint:
                complaint = str(error)
                _log.error("endpoints cannot be learnt", error=complaint)
        except Exception:
            # Requests go on to the endpoints that are known, and these are not to stay for ever.
            _log.exception("endpoints are not followed; trying anew")
        await asyncio.sleep(back_off * draw.uniform(0.5, 1.0))
        back_off = min(2 * back_off, LONGEST_BACK_OFF)


async def _watch(
    cluster: Cluster, source: InferencePoolConfig | PodsConfig, on_change: OnChange, draw: random.Random
) -> None:
    namespace = source.namespace or cluster.namespace
    following = _Following(cluster, namespace, on_change, draw)
    if isinstance(source, PodsConfig):
        following.use(Members(source.selector, source.ports))
        await following.pods()
        return
    name = source.name
    pools: Listing[Members] = Listing(
        f"{API}/namespaces/{namespace}/inferencepools",
        (("fieldSelector", f"metadata.name={name}"),),
        members_of,
    )

    def learnt(found: Mapping[str, Members]) -> None:
        for members in found.values():
            following.use(members)
            return
        following.nothing()
        _log.warning(
            "no such InferencePool, or one without selector and ports", name=name, namespace=namespace
        )

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(following.pods())
        tasks.create_task(follow(cluster, pools, learnt, draw))


class _Following:
    """The pods of what is selected now, followed."""

    def __init__(self, cluster: Cluster, namespace: str, on_change: OnChange, draw: random.Random) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._on_change = on_change
        self._draw = draw
        self._members: Members | None = None
        self._pods: Mapping[str, Pod] | None = None
        """None until those of the selector were listed."""
        self._told: tuple[str, ...] | None = None
        self._selector_changed = asyncio.Event()

    def use(self, members: Members) -> None:
        """These are the members from now on. Endpoints of a selector before stay until the new one's pods are
        listed.
        """
        before, self._members = self._members, members
        if before is None or before.selector != members.selector:
            self._pods = None
            self._selector_changed.set()
        else:
            self._tell()

    def nothing(self) -> None:
        """There are no members any more."""
        if self._members is not None:
            self._members = self._pods = None
            self._selector_changed.set()
            self._tell()

    async def pods(self) -> None:
        """Follow the pods of the selector, whichever it is, until cancelled."""
        while True:
            await self._selector_changed.wait()
            self._selector_changed.clear()
            if self._members is None:
                continue
            pods = Listing(
                f"/api/v1/namespaces/{self._namespace}/pods",
                (("labelSelector", self._members.selector),),
                pod_of,
            )
            following = asyncio.create_task(follow(self._cluster, pods, self._learnt, self._draw))
            changed = asyncio.create_task(self._selector_changed.wait())
            try:
                await asyncio.wait({following, changed}, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
            finally:
                following.cancel()
                changed.cancel()
                await asyncio.gather(following, changed, return_exceptions=True)

    def _learnt(self, pods: Mapping[str, Pod]) -> None:
        self._pods = pods
        self._tell()

    def _tell(self) -> None:
        if self._members is None:
            endpoints: tuple[str, ...] = ()
        elif self._pods is None:
            return
        else:
            endpoints = endpoints_of(self._members.ports, self._pods.values())
        if endpoints != self._told:
            self._told = endpoints
            self._on_change(endpoints)
