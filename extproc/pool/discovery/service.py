"""Endpoints from the EndpointSlices of a Kubernetes Service, and which of them run on prepared nodes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping

import structlog

from extproc.config import ServiceConfig
from extproc.pool.discovery.endpoint_slices import (
    ENDPOINT_SLICES,
    MANAGED_BY,
    SERVICE_NAME,
    Slice,
    serving,
    slice_of,
)
from extproc.pool.discovery.found import Found, OnChange
from extproc.pool.discovery.kubernetes import Cluster, Json, Listing, batches, follow, with_cluster
from extproc.pool.discovery.node_caches import MANAGER, SUFFIX, Prepared, node_caches, prepared_of
from extproc.pool.discovery.observer import Observer

_log = structlog.get_logger(__name__)


async def watch(
    source: ServiceConfig,
    on_change: OnChange,
    *,
    node_cache: bool = True,
    draw: random.Random | None = None,
    observer: Observer | None = None,
) -> None:
    """Call `on_change` with the endpoints now and whenever they change, until cancelled.

    Until the Service has EndpointSlices it is not called, nor while none of them has the port; once all are
    deleted, with no endpoints. `node_cache`: say also what cacheprep says of the nodes. `draw` spreads
    attempts while Kubernetes cannot be reached.
    """
    draw = random.Random() if draw is None else draw

    async def run(cluster: Cluster) -> None:
        following = _Following(source, source.namespace or cluster.namespace, node_cache, on_change)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(follow(cluster, following.listing, following.learnt, draw, observer))
            tasks.create_task(following.tell())

    await with_cluster(run, draw)


class _Following:
    """The slices of one Service, and what was made of them."""

    def __init__(self, source: ServiceConfig, namespace: str, node_cache: bool, on_change: OnChange) -> None:
        names = (source.name, source.name + SUFFIX) if node_cache else (source.name,)
        self.listing: Listing[Slice | Prepared | None] = Listing(
            ENDPOINT_SLICES, namespace, self._read, selector=f"{SERVICE_NAME} in ({','.join(names)})"
        )
        self._source = source
        self._on_change = on_change
        self._slices: Mapping[str, Slice | Prepared | None] = {}
        self._changed = asyncio.Event()
        self._told: Found | None = None
        self._said: frozenset[str] = frozenset()

    def learnt(self, slices: Mapping[str, Slice | Prepared | None]) -> None:
        """These are the slices now."""
        self._slices = slices
        self._changed.set()

    async def tell(self) -> None:
        """Tell what changed, until cancelled."""
        async for _ in batches(self._changed):
            self._tell()

    def _read(self, item: Json) -> Slice | Prepared | None:
        labels = item["metadata"]["labels"]
        if labels[SERVICE_NAME] == self._source.name:
            return slice_of(item, self._source.port)
        return prepared_of(item) if labels.get(MANAGED_BY) == MANAGER else None

    def _tell(self) -> None:
        slices = [one for one in self._slices.values() if isinstance(one, Slice)]
        prepared = [one for one in self._slices.values() if isinstance(one, Prepared)]
        members = serving(slices, self._source.ip_family)
        self._say(self._odd(slices))
        # A port that no slice has is a mistake in the settings. Requests then pass unpinned: to refuse them
        # all would be worse.
        unknown = not slices or (not members and any(one.lacks_port for one in slices))
        if unknown and self._told is None:
            return
        caches = node_caches({one.uid for one in members.values() if one.uid}, prepared, self._source.name)
        found = Found(
            tuple(members),
            {address: caches[one.uid] for address, one in members.items() if one.uid in caches},
            {address: one.place for address, one in members.items()},
        )
        if found != self._told:
            self._told = found
            self._on_change(found)

    def _odd(self, slices: list[Slice]) -> frozenset[str]:
        """What whoever wrote Service and settings should know."""
        if not slices:
            return frozenset(
                {"no EndpointSlices: there is no such Service, or nothing publishes its endpoints"}
            )
        odd = {words for one in slices for words in one.left_out}
        if any(one.lacks_port for one in slices):
            others = ", ".join(sorted({port for one in slices for port in one.other_ports})) or "none"
            odd.add(f"endpoints without port {self._source.port}; their ports are {others}")
        return frozenset(odd)

    def _say(self, odd: frozenset[str]) -> None:
        for words in sorted(odd - self._said):
            _log.warning(
                "Service not as expected",
                name=self._source.name,
                namespace=self.listing.namespace,
                found=words,
            )
        self._said = odd
