"""Another source: old pods serve until new ones do, or leave first where there is room for one only."""

from __future__ import annotations

import asyncio

from e2e.operator import nodes, sources
from e2e.operator.routed import NAME, routed
from e2e.operator.sources import ObjectStore
from e2e.operator.tenant import Tenant, digests, engine
from e2e.operator.waiting import until
from e2e.scenarios import stack
from e2e.scenarios.load import all_served, load, more

PIECE = 1 << 20


async def one_cache_on_each_node(tenant: Tenant) -> bool:
    """Whether each node has one cache of the namespace, and nothing half."""
    for node in nodes.workers():
        found = await nodes.files(node, tenant.namespace)
        if sum(file.endswith("/ready") for file in found) != 1 or any("/partial/" in file for file in found):
            return False
    return True


async def test_another_source_takes_over_under_load_and_no_request_fails(
    s3: ObjectStore, tenant: Tenant
) -> None:
    old, new = sources.model(60), sources.model(61, files=16, size=PIECE)
    s3.put("v1", old)
    s3.put("v2", new)
    async with routed(s3.source("v1"), 3, template=engine(drains=True)) as (llm, gateway):
        before = {pod["metadata"]["uid"] for pod in await llm.pods(NAME)}
        first = await llm.cache(NAME)
        async with load(gateway) as outcomes:
            await more(outcomes, 60)
            s3.relay.rate = 12e6
            await llm.change(NAME, modelSource=s3.source("v2"))
            await llm.says(NAME, "RollingOver", "FillingNext")
            # As long as the new weights come, nothing happens to what serves.
            assert {pod["metadata"]["uid"] for pod in await llm.pods(NAME)} == before
            s3.relay.rate = None

            async def over() -> bool:
                caches = [one["metadata"]["uid"] for one in await llm.caches(NAME)]
                return len(caches) == 1 and caches != [first["metadata"]["uid"]]

            await until(over, "the new cache has taken the place of the old one", 240)
            await llm.serves(NAME, 3)
            await more(outcomes, 60)
        all_served(outcomes)
        pods = await llm.pods(NAME)
        assert not before & {pod["metadata"]["uid"] for pod in pods}
        for pod in pods:
            assert await llm.loaded(pod) == digests(new)
        assert await llm.warm(NAME) == {pod["metadata"]["uid"]: True for pod in pods}
        await until(lambda: one_cache_on_each_node(llm), "the old files are gone")
        assert await llm.labelled(first) == set()


async def test_with_all_gpus_taken_old_pods_and_files_go_before_the_new_ones_come(
    s3: ObjectStore, tenant: Tenant
) -> None:
    old, new = sources.model(62), sources.model(63, files=8, size=PIECE)
    s3.put("full-1", old)
    s3.put("full-2", new)
    await stack.no_engines()
    # Each pod takes all GPUs of a node.
    template = engine(gpus=8)
    policy = {"rollover": "breakBeforeMake"}
    said = {"replicas": 3, "template": template, "cachePolicy": policy}
    await tenant.endpoint("llama", s3.source("full-1"), **said)
    await tenant.serves("llama", 3)
    before = s3.relay.passed
    seen: list[tuple[bool, bool, bool]] = []

    async def watch() -> None:
        while True:
            olds = [pod for pod in await tenant.pods("llama") if pod["metadata"]["uid"] in uids]
            files = [file for node in nodes.workers() for file in await nodes.files(node, tenant.namespace)]
            kept = any(key in file for file in files)
            seen.append((bool(olds), kept, s3.relay.passed - before > PIECE))
            await asyncio.sleep(0.2)

    uids = {pod["metadata"]["uid"] for pod in await tenant.pods("llama")}
    first = await tenant.cache("llama")
    key = first["status"]["key"]
    watching = asyncio.create_task(watch())
    try:
        await tenant.change("llama", modelSource=s3.source("full-2"))

        async def over() -> bool:
            pods = {pod["metadata"]["uid"] for pod in await tenant.pods("llama")}
            return bool(pods) and not pods & uids

        await until(over, "there are other pods", 180)
        await tenant.serves("llama", 3)
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    for pod in await tenant.pods("llama"):
        assert await tenant.loaded(pod) == digests(new)
    # Never bytes of the new ones while there were pods or files of the old ones.
    assert all(not new for old_pods, old_files, new in seen if old_pods or old_files)
    assert any(not old_pods and not old_files for old_pods, old_files, _ in seen)
    assert await tenant.labelled(first) == set()
