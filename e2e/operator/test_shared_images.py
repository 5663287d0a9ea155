"""An image that two endpoints run is pulled by each node once, and goes with the last of them."""

from __future__ import annotations

from cacheprep.api.names import IMAGE_READY
from e2e.cluster import registry
from e2e.operator import nodes
from e2e.operator.sources import ObjectStore
from e2e.operator.tenant import Json, Tenant, engine, labels_of
from e2e.operator.waiting import until
from images.build import EXTPROC

IMAGES_ONLY: Json = {"imageCache": {"enabled": True}}


async def test_an_image_stays_while_an_endpoint_runs_it_and_goes_with_the_last(
    s3: ObjectStore, tenant: Tenant
) -> None:
    image = registry.push(EXTPROC.reference, "engine:1")
    s3.put("images", {"config.json": b"{}"})
    for name in ("first", "second"):
        await tenant.endpoint(
            name,
            s3.source("images"),
            replicas=1,
            template=engine(image=image),
            modelCacheConfig=IMAGES_ONLY,
        )

    async def cached() -> bool:
        found = [one for one in await tenant.all("ModelImageCache") if one["spec"]["image"] == image]
        return [(one.get("status") or {}).get("cached") for one in found] == [3]

    await until(cached, "every node keeps the image")
    (cache,) = await tenant.all("ModelImageCache")
    assert sorted(one["name"] for one in cache["spec"]["endpointRefs"]) == ["first", "second"]
    assert cache["status"]["digest"].startswith("sha256:")
    label = IMAGE_READY + cache["metadata"]["uid"]
    keeping = {one["metadata"]["name"] for one in await tenant.all("Node", f"{label}=true")}
    assert keeping == nodes.workers()
    (daemon_set,) = await tenant.all("DaemonSet")

    await tenant.delete("first")

    async def one_left() -> bool:
        return [one["metadata"]["name"] for one in await tenant.all("InferenceEndpointConfig")] == ["second"]

    await until(one_left, "the first is gone")

    async def second_alone() -> bool:
        (kept,) = await tenant.all("ModelImageCache")
        return [one["name"] for one in kept["spec"]["endpointRefs"]] == ["second"]

    await until(second_alone, "the image is the second's alone")
    (same,) = await tenant.all("DaemonSet")
    assert same["metadata"]["uid"] == daemon_set["metadata"]["uid"]
    assert {one["metadata"]["name"] for one in await tenant.all("Node", f"{label}=true")} == nodes.workers()

    await tenant.delete("second")
    await tenant.nothing_is_left()
    assert not await labels_of(tenant, [cache["metadata"]["uid"]])


async def test_an_image_that_is_not_there_is_said_and_holds_no_pod_of_others_up(
    s3: ObjectStore, tenant: Tenant
) -> None:
    s3.put("images", {"config.json": b"{}"})
    image = registry.push(EXTPROC.reference, "engine:1").replace("engine:1", "no-such-image:1")
    await tenant.endpoint(
        "llama",
        s3.source("images"),
        replicas=1,
        template=engine(image=image),
        modelCacheConfig=IMAGES_ONLY,
    )

    async def said() -> bool:
        caches = await tenant.all("ModelImageCache")
        conditions = [one for cache in caches for one in (cache.get("status") or {}).get("conditions") or ()]
        return [one["reason"] for one in conditions] == ["PullFailed"]

    await until(said, "the image cache says that it cannot be pulled")
