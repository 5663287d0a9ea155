"""Endpoints from Kubernetes: the ready pods that an InferencePool, or a label selector, names.

The InferencePool says which pods and which of their ports (`inference.networking.k8s.io/v1` of the Gateway
API Inference Extension). A pod's readiness is taken from the pod itself, as that extension does: an endpoint
leaves the moment its pod is told to stop, before any EndpointSlice says so.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

import structlog

from extproc.address import parse_endpoint
from extproc.config import InferencePoolConfig, PodsConfig
from extproc.pool.discovery.endpoint_slices import ENDPOINT_SLICES
from extproc.pool.discovery.found import Found, OnChange, Place
from extproc.pool.discovery.kubernetes import (
    Cluster,
    Json,
    Listing,
    Resource,
    batches,
    follow,
    with_cluster,
)
from extproc.pool.discovery.node_caches import SELECTOR, Prepared, node_caches, prepared_of
from extproc.pool.discovery.observer import Observer

PODS = Resource("", "v1", "pods")
INFERENCE_POOLS = Resource("inference.networking.k8s.io", "v1", "inferencepools")
ACTIVE_PORTS = "inference.networking.k8s.io/active-ports"
"""Annotation of a pod with those of the target ports that it serves, with commas (same extension)."""

_log = structlog.get_logger(__name__)


class Members(NamedTuple):
    """Which pods are endpoints, and on which ports."""

    selector: str
    """A label selector in text, as in `labelSelector`."""
    ports: tuple[int, ...]


class Pod(NamedTuple):
    """What matters of a pod."""

    host: str
    """IP address as it stands in a canonical endpoint; empty until it has one."""
    ready: bool
    """Ready, and not told to stop."""
    ports: frozenset[int] | None
    """Those of the target ports that it serves; None: all."""
    uid: str
    place: Place


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
    return Pod(
        _host(address) if address else "",
        ready and not metadata.get("deletionTimestamp"),
        None
        if active is None
        else frozenset(int(port) for port in active.split(",") if port.strip().isdecimal()),
        metadata["uid"],
        Place(metadata.get("name") or "", (pod.get("spec") or {}).get("nodeName") or ""),
    )


def endpoints_of(ports: Collection[int], pods: Iterable[Pod]) -> dict[str, Pod]:
    """The pods that requests may go to, by endpoint in order; canonical (see `extproc.address`)."""
    found = {
        f"{pod.host}:{port}": pod
        for pod in pods
        if pod.ready and pod.host
        for port in ports
        if pod.ports is None or port in pod.ports
    }
    return {endpoint: found[endpoint] for endpoint in sorted(found)}


def _host(address: str) -> str:
    return parse_endpoint(f"[{address}]:1" if ":" in address else f"{address}:1").removesuffix(":1")


async def watch(
    source: InferencePoolConfig | PodsConfig,
    on_change: OnChange,
    *,
    node_cache: bool = True,
    draw: random.Random | None = None,
    observer: Observer | None = None,
) -> None:
    """Call `on_change` with the endpoints now and whenever they change, until cancelled.

    Until the InferencePool exists it is not called; once that is deleted, with no endpoints. `node_cache`:
    say also what cacheprep says of the nodes. `draw` spreads attempts while Kubernetes cannot be reached.
    """
    draw = random.Random() if draw is None else draw

    async def run(cluster: Cluster) -> None:
        await _watch(cluster, source, on_change, node_cache, draw, observer)

    await with_cluster(run, draw)


async def _watch(
    cluster: Cluster,
    source: InferencePoolConfig | PodsConfig,
    on_change: OnChange,
    node_cache: bool,
    draw: random.Random,
    observer: Observer | None,
) -> None:
    namespace = source.namespace or cluster.namespace
    following = _Following(cluster, namespace, on_change, draw, observer)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(following.pods())
        tasks.create_task(following.tell())
        if node_cache:
            slices = Listing(
                ENDPOINT_SLICES,
                namespace,
                prepared_of,
                selector=SELECTOR,
                otherwise="; or nodeCache: false in the pool's settings",
            )
            tasks.create_task(follow(cluster, slices, following.prepared, draw, observer))
        if isinstance(source, PodsConfig):
            following.use(Members(source.selector, source.ports))
            return
        pools = Listing(INFERENCE_POOLS, namespace, members_of, name=source.name)

        def learnt(found: Mapping[str, Members]) -> None:
            for members in found.values():
                following.use(members)
                return
            following.nothing()
            _log.warning(
                "no such InferencePool, or one without selector and ports",
                name=source.name,
                namespace=namespace,
            )

        tasks.create_task(follow(cluster, pools, learnt, draw, observer))


class _Following:
    """The pods of what is selected now, followed."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        on_change: OnChange,
        draw: random.Random,
        observer: Observer | None,
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._on_change = on_change
        self._draw = draw
        self._observer = observer
        self._members: Members | None = None
        self._pods: Mapping[str, Pod] | None = None
        """None until those of the selector were listed."""
        self._prepared: Mapping[str, Prepared] = {}
        self._told: Found | None = None
        self._selector_changed = asyncio.Event()
        self._changed = asyncio.Event()

    def use(self, members: Members) -> None:
        """These are the members from now on. Endpoints of a selector before stay until the new one's pods are
        listed.
        """
        before, self._members = self._members, members
        if before is None or before.selector != members.selector:
            self._pods = None
            self._selector_changed.set()
        self._changed.set()

    def nothing(self) -> None:
        """There are no members any more."""
        if self._members is not None:
            self._members = self._pods = None
            self._selector_changed.set()
            self._changed.set()

    def prepared(self, slices: Mapping[str, Prepared]) -> None:
        """This is what cacheprep says."""
        self._prepared = slices
        self._changed.set()

    async def pods(self) -> None:
        """Follow the pods of the selector, whichever it is, until cancelled."""
        while True:
            await self._selector_changed.wait()
            self._selector_changed.clear()
            if self._members is None:
                continue
            pods = Listing(PODS, self._namespace, pod_of, selector=self._members.selector)
            following = asyncio.create_task(
                follow(self._cluster, pods, self._learnt, self._draw, self._observer)
            )
            changed = asyncio.create_task(self._selector_changed.wait())
            try:
                await asyncio.wait({following, changed}, return_when=asyncio.FIRST_COMPLETED)
                if following.done():
                    following.result()
            finally:
                following.cancel()
                changed.cancel()
                await asyncio.gather(following, changed, return_exceptions=True)

    async def tell(self) -> None:
        """Tell what changed, until cancelled."""
        async for _ in batches(self._changed):
            self._tell()

    def _learnt(self, pods: Mapping[str, Pod]) -> None:
        self._pods = pods
        self._changed.set()

    def _tell(self) -> None:
        if self._members is None:
            if self._told is None:
                return
            found = Found(())
        elif self._pods is None:
            return
        else:
            endpoints = endpoints_of(self._members.ports, self._pods.values())
            caches = node_caches({pod.uid for pod in endpoints.values()}, self._prepared.values())
            found = Found(
                tuple(endpoints),
                {address: caches[pod.uid] for address, pod in endpoints.items() if pod.uid in caches},
                {address: pod.place for address, pod in endpoints.items()},
            )
        if found != self._told:
            self._told = found
            self._on_change(found)
