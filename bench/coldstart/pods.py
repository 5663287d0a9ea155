"""One pod from nothing to Ready, and when each step of it was seen done."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from bench.coldstart.objects import ENGINE, NAMESPACE
from cacheprep.api.names import ENDPOINT
from cacheprep.plan.workload import ENSURE
from e2e.cluster.command import ClusterError
from extproc.pool.discovery.kubernetes import Cluster, Listing, Resource

Json = Mapping[str, Any]

PODS = Resource("", "v1", "pods")
GONE_SECONDS = 60.0


class Step(StrEnum):
    """What a pod has behind it, in this order."""

    SCHEDULED = "scheduled"
    """It has a node."""
    WEIGHTS = "weights"
    """The init container has the model ready."""
    IMAGE = "image"
    """The engine runs, so its image is there."""
    READY = "ready"
    """The engine has loaded the model, and answers."""


@dataclass(frozen=True)
class Start:
    """How a pod came up. Seconds since it was asked for."""

    node: str
    at: Mapping[Step, float]
    loaded_bytes: int
    loading_seconds: float
    """What the engine took to read the model."""

    @property
    def seconds(self) -> float:
        """To Ready."""
        return self.at[Step.READY]

    def spans(self) -> dict[Step, float]:
        """How long each step took after the one before."""
        spans, before = {}, 0.0
        for step in Step:
            spans[step], before = self.at[step] - before, self.at[step]
        return spans


def steps(pod: Json) -> set[Step]:
    """What a pod has behind it.

    Raises:
        ClusterError: a container of it ended with an error.
    """
    status = pod.get("status") or {}
    found = set()
    if pod["spec"].get("nodeName"):
        found.add(Step.SCHEDULED)
    for container in (*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())):
        ended = container["state"].get("terminated") or (container.get("lastState") or {}).get("terminated")
        if ended and ended["exitCode"]:
            said = ended.get("message") or ended.get("reason") or ""
            raise ClusterError(f"{container['name']} ended with {ended['exitCode']}: {said.strip()}")
        if container["name"] == ENSURE and ended:
            found.add(Step.WEIGHTS)
        if container["name"] == ENGINE and container["state"].get("running") is not None:
            found.add(Step.IMAGE)
    for condition in status.get("conditions") or ():
        if condition["type"] == "Ready" and condition["status"] == "True":
            found.add(Step.READY)
    return found


async def start(cluster: Cluster, name: str, seconds: float) -> Start:
    """Ask for the one pod of a Deployment, and follow it until it is Ready.

    Raises:
        ClusterError: it is not Ready after `seconds`, or a container failed.
    """
    listing = _pods_of(name)
    there, version = await cluster.objects(listing)
    if there:
        raise ClusterError(f"deployment {name} has a pod already")
    at: dict[Step, float] = {}
    pod: Json = {}
    began = time.monotonic()
    await _scale(cluster, name, 1)
    try:
        async with asyncio.timeout(seconds):
            while Step.READY not in at:
                async with cluster.changes(listing, version) as events:
                    async for event in events:
                        pod = event["object"]
                        version = str(pod["metadata"]["resourceVersion"])
                        if event["type"] == "BOOKMARK":
                            continue
                        now = time.monotonic() - began
                        at |= {step: now for step in steps(pod) if step not in at}
                        if Step.READY in at:
                            break
    except TimeoutError:
        conditions = [
            f"{one['type']}: {one.get('message') or one.get('reason') or ''}"
            for one in (pod.get("status") or {}).get("conditions") or ()
            if one["status"] != "True"
        ]
        raise ClusterError(f"{name}: not Ready after {seconds:.0f} s; {'; '.join(conditions)}") from None
    loaded = await _loaded(cluster, str(pod["metadata"]["name"]))
    return Start(str(pod["spec"]["nodeName"]), at, int(loaded["bytes"]), float(loaded["seconds"]))


async def stop(cluster: Cluster, name: str) -> None:
    """Have no pod of a Deployment, and wait until it is gone. Raises `ClusterError` if it stays."""
    listing = _pods_of(name)
    await _scale(cluster, name, 0)
    there, version = await cluster.objects(listing)
    try:
        async with asyncio.timeout(GONE_SECONDS):
            while there:
                async with cluster.changes(listing, version) as events:
                    async for event in events:
                        version = str(event["object"]["metadata"]["resourceVersion"])
                        if event["type"] == "DELETED":
                            there.pop(str(event["object"]["metadata"]["uid"]), None)
                            if not there:
                                break
    except TimeoutError:
        raise ClusterError(f"{name}: its pod is not gone after {GONE_SECONDS:.0f} s") from None


def _pods_of(name: str) -> Listing[Json]:
    return Listing(PODS, NAMESPACE, lambda pod: pod, selector=f"{ENDPOINT}={name}")


async def _scale(cluster: Cluster, name: str, replicas: int) -> None:
    path = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/{name}/scale"
    scale = {"spec": {"replicas": replicas}}
    await cluster.send("PATCH", path, scale, content="application/merge-patch+json")


async def _loaded(cluster: Cluster, pod: str) -> Json:
    for line in (await cluster.log(NAMESPACE, pod, ENGINE)).splitlines():
        if b'"loaded"' in line:
            said: Json = json.loads(line)
            return said
    raise ClusterError(f"{pod}: the engine does not say what it loaded")
