"""One replica of the controller: it waits or leads, and ends when it may not lead any more."""

from __future__ import annotations

import asyncio
import random
import time
from datetime import UTC, datetime

import structlog
from prometheus_client import CollectorRegistry

from cacheprep import __version__
from cacheprep.controller.acting import Hand
from cacheprep.controller.lease import Lease
from cacheprep.controller.metrics import ControllerMetrics
from cacheprep.controller.reconcile import Reconciler
from cacheprep.health import answering
from cacheprep.objects import path
from cacheprep.plan.settings import Settings
from extproc.pool.discovery.kubernetes import Cluster, follow

LEASE = "cacheprep-controller"
CONTAINER = "controller"
"""The controller's container in its pod."""

_log = structlog.get_logger(__name__)


async def control(cluster: Cluster, settings: Settings, *, identity: str, listen: str) -> None:
    """Lead once the lease is had, and keep all endpoints of the cluster, until cancelled.

    Args:
        cluster: the API server; the lease is in its namespace.
        settings: of the operator.
        identity: of this replica; unique.
        listen: host:port for health and metrics.

    Raises:
        cacheprep.controller.lease.Lost: another may lead.
        cacheprep.failures.Failure: InvalidRequest if `listen` cannot be had.
    """
    registry = CollectorRegistry()
    metrics = ControllerMetrics(registry)
    lease = Lease(cluster, cluster.namespace, LEASE, identity, time.monotonic, lambda: datetime.now(UTC))
    reconciler = Reconciler(cluster, Hand(cluster, time.time), settings, metrics, time.monotonic, time.time)
    leads = False

    async def lead() -> None:
        nonlocal leads
        leads = True
        metrics.leading.set(1)
        await keep(cluster, reconciler)

    def unready() -> str:
        # A replica that waits for the lease is ready: it takes over when it is its turn.
        unknown = reconciler.world.unknown if leads else ()
        return f"not known yet: {', '.join(unknown)}; the log says what forbids it" if unknown else ""

    async with answering(listen, registry, reconciler.stuck, unready) as port:
        _log.info("controller", version=__version__, identity=identity, port=port)
        await lease.lead(lead)


async def image_of(cluster: Cluster, pod: str) -> str:
    """The image that the controller's pod of this name runs, however its manifest came by it.

    Raises as `Cluster.send`; KeyError if the pod has no container `CONTAINER`.
    """
    item = await cluster.send("GET", path("Pod", pod, cluster.namespace))
    return {str(one["name"]): str(one["image"]) for one in item["spec"]["containers"]}[CONTAINER]


async def keep(cluster: Cluster, reconciler: Reconciler) -> None:
    """Keep all endpoints of the cluster, until cancelled. Nobody else may do so meanwhile."""
    async with asyncio.TaskGroup() as tasks:
        for index in reconciler.world.indices:
            following = follow(cluster, index.listing, index.take, random.Random())
            tasks.create_task(following, name=index.listing.resource.plural)
        tasks.create_task(reconciler.run(), name="reconcile")
