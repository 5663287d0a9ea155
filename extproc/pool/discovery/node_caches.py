"""Which endpoints run on nodes that have their weights, by the EndpointSlices of cacheprep. Without IO.

Beside the Service of a model there is a headless one without selector, `<name>-warm`, whose slices say of
each pod whether it is ready on a prepared node. They are joined by the pod's uid, and never decide who
serves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from extproc.pool.discovery.endpoint_slices import MANAGED_BY, SERVICE_NAME, ready_pods
from extproc.pool.discovery.found import NodeCache
from extproc.pool.discovery.kubernetes import Json

MANAGER = "cacheprep.warmroute.dev"
"""Value of the label `endpointslice.kubernetes.io/managed-by` of the slices that count here."""
SUFFIX = "-warm"

SELECTOR = f"{MANAGED_BY}={MANAGER}"


class Prepared(NamedTuple):
    """What one of these slices says."""

    service: str
    pods: Mapping[str, bool]
    """By uid: whether it is ready on a node that is prepared."""


def prepared_of(item: Json) -> Prepared:
    """What matters of the JSON of one of these slices."""
    return Prepared(item["metadata"]["labels"][SERVICE_NAME], ready_pods(item))


def node_caches(
    pods: Collection[str], slices: Iterable[Prepared], service: str | None = None
) -> Mapping[str, NodeCache]:
    """What is known of each of a pool's pods, by uid; nothing if there are no slices about the pool.

    `service` is the name of the pool's own Service. Without one the slices about the pool are those of each
    `-warm` Service that lists any of its pods.
    """
    slices = tuple(slices)
    if service is None:
        names = {one.service for one in slices if not one.pods.keys().isdisjoint(pods)}
    else:
        names = {service + SUFFIX}
    about = [one for one in slices if one.service in names]
    if not about:
        return {}
    warm = {uid for one in about for uid, ready in one.pods.items() if ready}
    return {uid: "warm" if uid in warm else "cold" for uid in pods}
