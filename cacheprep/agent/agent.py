"""One agent: what it follows, what it does at each look at the disks, and how it ends.

Nothing that matters is in its memory alone: killed at any moment, it finds on the disks and in the cluster
what it has to know.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import structlog

from cacheprep import __version__
from cacheprep.agent import cluster as read
from cacheprep.agent.claims import ORPHAN_SECONDS, Claims, Place, Removal, removable, unclaimed
from cacheprep.agent.confinement import confined
from cacheprep.agent.disks import Disks, Found, dismantle, look, prepare
from cacheprep.agent.metrics import AgentMetrics
from cacheprep.agent.report import Node, status_of, worth_writing, written
from cacheprep.agent.schedule import DEEP_BYTES_PER_SECOND, DEEP_SECONDS, next_deep
from cacheprep.agent.verification import read_all
from cacheprep.api.caches import NodeCacheStatus
from cacheprep.failures import Failure
from cacheprep.objects import UNDONE, apply
from cacheprep.plan.identity import store_path
from cacheprep.plan.jobs import UNPRIVILEGED
from cacheprep.store.gc import Found as Leftover
from cacheprep.store.gc import collect
from cacheprep.store.layout import Layout
from cacheprep.store.remove import remove
from cacheprep.store.root import Rules
from extproc.pool.discovery.kubernetes import Cluster, Listing, follow

LOOK_SECONDS = 5.0
"""Between two looks at the disks: how late a cache that has become ready is told."""
COLLECT_SECONDS = 3600.0
"""Between two collections of what dead processes have left."""
STALE_LOOKS = 60
"""After so many times `LOOK_SECONDS` without a look the agent is not healthy: a disk hangs."""

_log = structlog.get_logger(__name__)

T = TypeVar("T")


class Settings(NamedTuple):
    """What an agent is set to; times are seconds."""

    node: str
    roots: tuple[str, ...]
    rules: Rules
    deep_seconds: float = DEEP_SECONDS
    deep_bytes_per_second: float = DEEP_BYTES_PER_SECOND
    look_seconds: float = LOOK_SECONDS
    orphan_seconds: float = ORPHAN_SECONDS
    """How long what nobody claims stays."""


@dataclass
class _Seen:
    """What the API server has told; None until it has."""

    node: Node | None = None
    caches: read.Caches | None = None
    pods: read.Pods | None = None
    written: NodeCacheStatus | None = None
    synced: bool = False
    """Whether `written` is known."""


@dataclass
class Agent:
    """The agent of one node.

    Args:
        cluster: the API server.
        settings: what it is set to.
        metrics: what it counts.
        draw: spreads attempts.
        now: monotonic time, s.
        wall: Unix time, s.
    """

    cluster: Cluster
    settings: Settings
    metrics: AgentMetrics
    draw: random.Random
    now: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    _seen: _Seen = field(default_factory=_Seen)
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _stop: threading.Event = field(default_factory=threading.Event)
    _unclaimed: dict[Place, float] = field(default_factory=dict)
    _disks: Disks | None = None
    _looked: float | None = None
    _collected: float | None = None
    _told: bool = False

    async def run(self) -> None:
        """Work until cancelled; a verification that runs is given up then."""
        following: tuple[tuple[Listing[Any], Callable[[Any], None]], ...] = (
            (read.node(self.settings.node), self._on_node),
            (read.caches(), self._on_caches),
            (read.pods(self.settings.node), self._on_pods),
            (read.report(self.settings.node), self._on_report),
        )
        try:
            async with asyncio.TaskGroup() as tasks:
                for listing, told in following:
                    tasks.create_task(self._follow(listing, told), name=listing.resource.plural)
                tasks.create_task(self._look(), name="look")
                tasks.create_task(self._verify(), name="verify")
        finally:
            self._stop.set()

    def unhealthy(self) -> str:
        """Why the agent should be started anew; "" if it should not."""
        longest = STALE_LOOKS * self.settings.look_seconds
        if self._looked is not None and self.now() - self._looked > longest:
            return f"the disks were not looked at for {self.now() - self._looked:.0f} s; does one hang?"
        return ""

    def unready(self) -> str:
        """Why nothing is said of the node yet; "" once it is."""
        if self._seen.node is None:
            return f"node {self.settings.node}: is not known"
        return "" if self._told else f"NodeModelCache {self.settings.node}: is not written yet"

    async def _follow(self, listing: Listing[T], told: Callable[[Mapping[str, T]], None]) -> None:
        def changed(objects: Mapping[str, T]) -> None:
            told(objects)
            self._wake.set()

        await follow(self.cluster, listing, changed, self.draw)

    def _on_node(self, nodes: Mapping[str, Node]) -> None:
        self._seen.node = next(iter(nodes.values()), None)

    def _on_caches(self, caches: read.Caches) -> None:
        self._seen.caches = caches

    def _on_pods(self, pods: read.Pods) -> None:
        self._seen.pods = pods

    def _on_report(self, reports: Mapping[str, NodeCacheStatus]) -> None:
        self._seen.written = next(iter(reports.values()), None)
        self._seen.synced = True

    async def _look(self) -> None:
        while True:
            # From before the look: what becomes ready meanwhile may be missing from it.
            at = self.wall()
            self._disks = await asyncio.to_thread(look, self.settings.roots, self.settings.rules)
            self._looked = self.now()
            self.metrics.looked(self._disks, at)
            await self._tell(self._disks, at)
            await self._prepare()
            if await self._clean(self._disks):
                continue
            await self._collect(self._disks)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.settings.look_seconds):
                    await self._wake.wait()
            self._wake.clear()

    async def _prepare(self) -> None:
        """Have the directories that claims stand for."""
        wanted = {one.claimed for one in (self._seen.caches or {}).values() if one.claimed is not None}
        for root, namespace in sorted(wanted):
            if root not in self.settings.roots:
                continue
            where = store_path(root, namespace)
            try:
                if await asyncio.to_thread(prepare, where, UNPRIVILEGED):
                    _log.info("directory made for a claim", path=where)
            except OSError as error:
                _log.warning("directory for a claim cannot be made", path=where, error=str(error))

    def _claims(self) -> Claims | None:
        if self._seen.caches is None or self._seen.pods is None:
            return None
        return read.claims(self._seen.caches.values(), self._seen.pods.values())

    async def _tell(self, disks: Disks, at: float) -> None:
        node = self._seen.node
        if node is None or not self._seen.synced:
            return
        status = status_of(disks, node, self._claims(), datetime.fromtimestamp(at, UTC), __version__)
        if not worth_writing(self._seen.written, status):
            self._told = True
            return
        try:
            for item, subresource in zip(written(node, status), ("", "status"), strict=True):
                await apply(self.cluster, item, subresource)
        except UNDONE as error:
            self.metrics.writes.labels("failed").inc()
            _log.warning("NodeModelCache cannot be written", node=node.name, error=str(error) or repr(error))
            return
        self.metrics.writes.labels("done").inc()
        self._seen.written, self._told = status, True

    async def _clean(self, disks: Disks) -> bool:
        """Remove what may go; whether anything has."""
        claims = self._claims()
        if claims is None:
            return False
        there = [found.place for found in disks.caches]
        self._unclaimed = unclaimed(there, claims, self._unclaimed, self.now())
        removals = self._removable(there, claims, disks)
        if removals:
            removals = await self._confirmed(removals, disks)
        layouts = {found.place: found.layout for found in disks.caches}
        gone = [one for one in removals if await asyncio.to_thread(self._remove, layouts[one.place], one)]
        if gone:
            self.metrics.removed.inc(len(gone))
        for path in await asyncio.to_thread(dismantle, self.settings.roots, claims):
            _log.info("empty store removed", path=path)
        return bool(gone)

    async def _confirmed(self, removals: list[Removal], disks: Disks) -> list[Removal]:
        """Those that may go by what the API server says right now: what was watched may be late."""
        try:
            caches, _ = await self.cluster.objects(read.caches())
            pods, _ = await self.cluster.objects(read.pods(self.settings.node))
        except UNDONE as error:
            _log.warning(
                "nothing is removed: the API server cannot be asked", error=str(error) or repr(error)
            )
            return []
        claims = read.claims(caches.values(), pods.values())
        return self._removable([one.place for one in removals], claims, disks)

    def _removable(self, there: list[Place], claims: Claims, disks: Disks) -> list[Removal]:
        patience = self.settings.orphan_seconds
        return removable(
            there, claims, self._unclaimed, self.now(), pressure=disks.full, orphan_seconds=patience
        )

    def _remove(self, layout: Layout, removal: Removal) -> bool:
        try:
            gone = confined(layout.root, remove, removal.place.key)
        except (Failure, OSError) as error:
            # In use or being fetched: at another look it will not be.
            _log.info("cache stays", **removal.place._asdict(), error=str(error))
            return False
        _log.info("cache removed", **removal.place._asdict(), why=removal.why)
        return gone

    async def _collect(self, disks: Disks) -> None:
        claims = self._claims()
        due = self._collected is None or self.now() - self._collected >= COLLECT_SECONDS
        if not due or claims is None:
            return
        self._collected = self.now()
        for layout in {found.layout.root: found.layout for found in disks.caches}.values():
            try:
                found = await asyncio.to_thread(confined, layout.root, _collected, self.wall())
            except (Failure, OSError) as error:
                _log.warning("what dead processes left cannot be removed", root=layout.root, error=str(error))
                continue
            for one in found:
                if not one.kept:
                    _log.info(
                        "leftovers removed", root=layout.root, path=one.path, bytes=one.bytes, why=one.why
                    )

    async def _verify(self) -> None:
        while True:
            await asyncio.sleep(self.settings.look_seconds)
            caches = self._disks.caches if self._disks is not None else ()
            found = next_deep(caches, self.settings.node, self.wall(), self.settings.deep_seconds)
            if found is None:
                continue
            good = await self._read(found)
            if good is not None:
                self.metrics.verified.labels("good" if good else "bad").inc()
                self._wake.set()

    async def _read(self, found: Found) -> bool | None:
        rate = self.settings.deep_bytes_per_second
        try:
            verdict = await asyncio.to_thread(read_all, found, rate, self._stop, self.wall())
        except (Failure, OSError) as error:
            _log.info("not verified", **found.place._asdict(), error=str(error))
            return None
        if not verdict.ready:
            _log.error("cache is damaged", **found.place._asdict(), problems=list(verdict.problems[:8]))
        return verdict.ready


def _collected(layout: Layout, now: float) -> list[Leftover]:
    return list(collect(layout, now))
