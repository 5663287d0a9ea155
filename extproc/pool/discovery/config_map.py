"""A ConfigMap, followed through the API: a change is known at once, where a mounted one takes a minute."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from extproc.config import ConfigMapConfig
from extproc.pool.discovery.kubernetes import Cluster, Json, Listing, Resource, follow, with_cluster
from extproc.pool.discovery.observer import Observer

CONFIG_MAPS = Resource("", "v1", "configmaps")

OnChange = Callable[[Mapping[str, str] | None], None]


async def watch(
    source: ConfigMapConfig,
    on_change: OnChange,
    *,
    draw: random.Random | None = None,
    observer: Observer | None = None,
) -> None:
    """Call `on_change` with the ConfigMap's `data` now and after every change, with None while there is no
    such ConfigMap, until cancelled. `draw` spreads attempts while Kubernetes cannot be reached.
    """
    draw = random.Random() if draw is None else draw

    def learnt(found: Mapping[str, Mapping[str, str]]) -> None:
        on_change(next(iter(found.values()), None))

    async def run(cluster: Cluster) -> None:
        namespace = source.namespace or cluster.namespace
        listing = Listing(CONFIG_MAPS, namespace, _data, name=source.name)
        await follow(cluster, listing, learnt, draw, observer)

    await with_cluster(run, draw)


def _data(item: Json) -> Mapping[str, str]:
    return item.get("data") or {}
