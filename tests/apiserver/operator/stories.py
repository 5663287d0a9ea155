"""What tests of the operator look at, and how they wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tests.apiserver.operator.actors import OWNED, Actors
from tests.apiserver.operator.running import Keeper


async def until(
    actors: Actors, keeper: Keeper, holds: Callable[[], Awaitable[object]], what: str, seconds: float = 30
) -> None:
    """Everybody acts until it holds."""
    end = asyncio.get_running_loop().time() + seconds
    while not await holds():
        keeper.check()
        assert asyncio.get_running_loop().time() < end, f"not within {seconds} s: {what}"
        await actors.act()
        await asyncio.sleep(0.05)


def loads(actors: Actors, wanted: str) -> Callable[[], Awaitable[bool]]:
    """All pods, and no others, load this key, and are ready."""

    async def holds() -> bool:
        found = await actors.get("InferenceEndpointConfig", "llama")
        status = (found or {}).get("status", {})
        return (
            status.get("cacheKey") == wanted
            and status.get("phase") == "Serving"
            and await actors.all("Pod") != []
            and len(await actors.all("ModelDataCacheConfig")) == 1
        )

    return holds


async def has(actors: Actors, kind: str) -> bool:
    return bool(await actors.all(kind))


async def labels(actors: Actors, prefix: str) -> dict[str, list[str]]:
    """By node, its labels with this prefix."""
    return {
        node["metadata"]["name"]: [
            label for label in node["metadata"].get("labels", {}) if label.startswith(prefix)
        ]
        for node in await actors.all("Node")
    }


async def warm(actors: Actors) -> dict[str, bool]:
    """By pod: whether the `-warm` slices say that it is warm."""
    return {
        endpoint["targetRef"]["name"]: endpoint["conditions"]["ready"]
        for item in await actors.all("EndpointSlice")
        for endpoint in item.get("endpoints") or ()
    }


async def nothing_is_left(actors: Actors) -> bool:
    lists = await asyncio.gather(*map(actors.all, ("InferenceEndpointConfig", *OWNED)))
    if any(lists):
        return False
    return not any((await labels(actors, "warmroute.dev/")).values()) and not any(actors.disks.values())


async def some_cold(actors: Actors) -> bool:
    return not all((await warm(actors)).values())


async def condition(actors: Actors, kind: str) -> dict[str, Any] | None:
    found = await actors.get("InferenceEndpointConfig", "llama")
    conditions = ((found or {}).get("status") or {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == kind), None)


async def enforce(actors: Actors, level: str) -> None:
    patch = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": level}}}
    where = f"/api/v1/namespaces/{actors.namespace}"
    await actors.cluster.send("PATCH", where, patch, (), "application/merge-patch+json")
