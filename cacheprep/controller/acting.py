"""Carrying out what a plan says, one action after the other. Decides nothing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from cacheprep.api import Endpoint, ModelDataCacheConfig
from cacheprep.api.model import MOST_MESSAGE, moment, written
from cacheprep.api.names import API_VERSION, FIELD_MANAGER, FINALIZER
from cacheprep.controller.reading import JobPod
from cacheprep.failures import Failure
from cacheprep.listing import Listing
from cacheprep.objects import CONFLICT, NOT_FOUND, Json, apply, delete, path
from cacheprep.plan import listings
from cacheprep.plan.actions import (
    Action,
    Apply,
    Delete,
    Event,
    LabelNode,
    RecordDrift,
    RecordListing,
    Scale,
    SetFinalizer,
    SetRolling,
    SetStatus,
)
from cacheprep.plan.jobs import CONTAINER
from extproc.pool.discovery.kubernetes import FORBIDDEN, ApiError, Cluster

_MERGE = "application/merge-patch+json"


class Unreadable(Exception):  # noqa: N818 - says what is wrong
    """What a Job printed cannot be had, or is no listing."""


class Hand:
    """What carries actions out.

    Args:
        cluster: where.
        wall: Unix time, s.
        component: who Events are said to come from.
    """

    def __init__(self, cluster: Cluster, wall: Callable[[], float], component: str = FIELD_MANAGER) -> None:
        self._cluster = cluster
        self._wall = wall
        self._component = component

    async def do(
        self,
        action: Action,
        endpoint: Endpoint,
        caches: Callable[[str], ModelDataCacheConfig | None],
        pods: Callable[[str, str], tuple[JobPod, ...]],
    ) -> Json | None:
        """Carry out one action.

        Args:
            action: what.
            endpoint: that the plan was made for.
            caches: the endpoint's ModelDataCacheConfigs, by name.
            pods: of a Job, by namespace and name.

        Returns:
            the object whose status or finalizer was written; None if it was another action, or it is gone.

        Raises:
            ApiError: the API server refused.
            Unreadable: a Job's listing cannot be had.
            aiohttp.ClientError, OSError, TimeoutError: it was not reached.
        """
        match action:
            case Apply():
                await self._admitted(action.manifest)
                await apply(self._cluster, action.manifest)
            case Delete():
                await delete(self._cluster, action.kind, action.name, action.namespace)
            case Scale():
                where = path("Deployment", action.name, action.namespace, "scale")
                await self._merge(where, {"spec": {"replicas": action.replicas}})
            case SetRolling():
                where = path("Deployment", action.name, action.namespace)
                await self._merge(where, {"spec": {"strategy": {"rollingUpdate": action.rolling}}})
            case LabelNode():
                await self.label(action)
            case SetStatus():
                metadata = {"namespace": action.namespace, "name": action.name}
                version = {"resourceVersion": action.resource_version}
                return await self._status(action.kind, {**metadata, **version}, action.status)
            case SetFinalizer():
                return await self._finalizer(action, endpoint.uid)
            case Event():
                await self._event(action)
            case RecordListing() | RecordDrift():
                cache = caches(action.cache)
                if cache is not None:
                    await self._record(action, endpoint, cache, pods(action.namespace, action.job))
        return None

    async def _admitted(self, manifest: dict[str, Any]) -> None:
        """Ask whether the pods of a workload would be let in; what makes them would be refused unseen."""
        template = manifest.get("spec", {}).get("template")
        if template is None:
            return
        namespace = manifest["metadata"]["namespace"]
        metadata = {**template["metadata"], "generateName": f"{manifest['metadata']['name'][:50]}-"}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**metadata, "namespace": namespace},
            "spec": {**template["spec"], "restartPolicy": template["spec"].get("restartPolicy", "Always")},
        }
        try:
            await self._cluster.send("POST", path("Pod", namespace=namespace), pod, [("dryRun", "All")])
        except ApiError as error:
            # Other refusals, as of a webhook that cannot be asked so, say nothing of real pods.
            if error.status == FORBIDDEN:
                raise

    async def _merge(self, where: str, patch: dict[str, Any]) -> Json:
        return await self._cluster.send("PATCH", where, patch, [("fieldManager", FIELD_MANAGER)], _MERGE)

    async def label(self, action: LabelNode) -> None:
        """Set or remove a label of a node; another node of the same name, or none, is good as well.

        Raises as `do`.
        """
        metadata = {"uid": action.uid, "labels": {action.label: action.value}}
        try:
            await self._merge(path("Node", action.node), {"metadata": metadata})
        except ApiError as error:
            # A uid that differs is a conflict.
            if error.status not in (NOT_FOUND, CONFLICT):
                raise

    async def _status(self, kind: str, metadata: dict[str, Any], status: dict[str, Any]) -> Json | None:
        item = {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "status": status}
        return await _unless_gone(apply(self._cluster, item, "status"))

    async def _finalizer(self, action: SetFinalizer, uid: str) -> Json | None:
        metadata = {"namespace": action.namespace, "name": action.name, "uid": uid}
        finalizers = [FINALIZER] if action.present else []
        item = {
            "apiVersion": API_VERSION,
            "kind": action.kind,
            "metadata": {**metadata, "finalizers": finalizers},
        }
        # By apply: only our own is put there or taken away, whatever others write meanwhile.
        return await _unless_gone(apply(self._cluster, item))

    async def _event(self, action: Event) -> None:
        at = written(moment(self._wall()))
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{action.name}.", "namespace": action.namespace},
            "involvedObject": {
                "apiVersion": API_VERSION,
                "kind": action.kind,
                "namespace": action.namespace,
                "name": action.name,
                "uid": action.uid,
            },
            "type": "Warning" if action.warning else "Normal",
            "reason": action.reason,
            "message": action.message[:MOST_MESSAGE],
            "source": {"component": self._component},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        await self._cluster.send("POST", path("Event", namespace=action.namespace), event)

    async def _record(
        self,
        action: RecordListing | RecordDrift,
        endpoint: Endpoint,
        cache: ModelDataCacheConfig,
        pods: tuple[JobPod, ...],
    ) -> None:
        listing = await self._printed(action.job, pods)
        if isinstance(action, RecordDrift) or not listings.fits(cache, listing):
            status = listings.looked(cache, listing, self._wall())
        else:
            parts = listings.config_maps(endpoint, cache, listing)
            for part in parts:
                await apply(self._cluster, part)
            status = listings.resolved(cache, listing, len(parts), self._wall())
        metadata = {"namespace": cache.namespace, "name": cache.name}
        await self._status(cache.kind, metadata, status)

    async def _printed(self, job: str, pods: tuple[JobPod, ...]) -> Listing:
        done = [pod for pod in pods if pod.succeeded]
        if not done:
            raise Unreadable(f"job {job}: its pod is gone, and with it what it printed")
        last = max(done, key=lambda pod: pod.created)
        printed = await self._cluster.log(last.namespace, last.name, CONTAINER)
        return listing_in(printed, f"pod {last.name}")


def listing_in(printed: bytes, where: str) -> Listing:
    """The listing among what was printed: a log has what a container says of its progress, too.

    Raises:
        Unreadable: there is none.
    """
    for line in reversed(printed.splitlines()):
        if line.startswith(b"{"):
            try:
                return Listing.from_json(line)
            except Failure as failure:
                raise Unreadable(f"{where}: {failure.message}") from failure
    raise Unreadable(f"{where}: printed no listing")


async def _unless_gone(request: Awaitable[Json]) -> Json | None:
    try:
        return await request
    except ApiError as error:
        if error.status != NOT_FOUND:
            raise
        return None
