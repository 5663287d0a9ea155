"""Deletion: nothing is left, in whichever order things go, and nothing holds it up."""

from __future__ import annotations

import asyncio

from e2e.cluster import kind
from e2e.operator import nodes, sources
from e2e.operator.sources import ObjectStore
from e2e.operator.tenant import Json, Tenant, engine, labels_of, on_node
from e2e.operator.waiting import until
from e2e.scenarios import stack

CACHES: Json = {"weightsCache": {"enabled": True}, "imageCache": {"enabled": True}}


async def uids(tenant: Tenant) -> list[str]:
    caches = [*await tenant.all("ModelDataCacheConfig"), *await tenant.all("ModelImageCache")]
    return [one["metadata"]["uid"] for one in caches]


async def test_an_endpoint_that_is_deleted_leaves_no_file_label_slice_or_object(
    s3: ObjectStore, tenant: Tenant
) -> None:
    s3.put("goes", sources.model(70))
    scaling = {"horizontalPodAutoscaler": {"minReplicas": 2, "maxReplicas": 3}}
    await tenant.endpoint("llama", s3.source("goes"), autoscaling=scaling, modelCacheConfig=CACHES)
    await tenant.serves("llama", 2)
    known = await uids(tenant)
    assert len(await labels_of(tenant, known)) == 6
    await tenant.delete("llama")
    await tenant.nothing_is_left()
    assert not await labels_of(tenant, known)


async def test_an_endpoint_that_is_deleted_while_it_is_filled_leaves_nothing(
    s3: ObjectStore, tenant: Tenant
) -> None:
    s3.put("early", sources.model(71, files=16, size=1 << 20))
    before = s3.relay.passed
    s3.relay.rate = 2e6
    await tenant.endpoint("llama", s3.source("early"), replicas=1)

    async def some() -> bool:
        return s3.relay.passed - before > 4 << 20

    await until(some, "something has come")
    await tenant.delete("llama")
    await tenant.nothing_is_left()


async def test_a_namespace_that_is_deleted_first_goes_and_nothing_of_it_is_left(
    s3: ObjectStore, tenant: Tenant
) -> None:
    s3.put("namespace", sources.model(72))
    await tenant.endpoint("llama", s3.source("namespace"), replicas=2, modelCacheConfig=CACHES)
    await tenant.serves("llama", 2)
    known = await uids(tenant)
    await stack.kubectl("delete", "namespace", tenant.namespace, "--wait", "--timeout=120s")

    async def no_labels() -> bool:
        return not await labels_of(tenant, known)

    await until(no_labels, "no label is left", 30)

    async def no_files() -> bool:
        return not any(
            await asyncio.gather(*(nodes.files(node, tenant.namespace) for node in sorted(nodes.workers())))
        )

    # Agents keep for a while what nobody claims: `--keep-unclaimed`.
    await until(no_files, "no file is left", 90)
    await tenant.move_in()


async def test_a_node_whose_agent_is_silent_is_waited_for_only_so_long(
    s3: ObjectStore, tenant: Tenant
) -> None:
    s3.put("silent", sources.model(73))
    node = kind.WORKERS[2]
    policy = {"cleanupTimeout": "15s"}
    template = engine(**on_node(node))
    await tenant.endpoint("llama", s3.source("silent"), replicas=1, template=template, cachePolicy=policy)
    await tenant.serves("llama", 1)
    await nodes.keep_agent_away(node, away=True)
    try:
        await nodes.agent_has_left(node)
        await tenant.delete("llama")
        await until(tenant.has_no_endpoint, "the endpoint is gone all the same", 90)
        events = await tenant.kubectl("get", "events", "--field-selector=reason=CleanupTimedOut")
        assert node in events
    finally:
        await nodes.keep_agent_away(node, away=False)
    # Once it is back it removes what nobody claims.
    await tenant.nothing_is_left()
