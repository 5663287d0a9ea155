"""Nodes that join, boot, lose their disk, or are others under the same name: what is said is of now."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from e2e.cluster import kind
from e2e.operator import nodes, sources
from e2e.operator.sources import ObjectStore
from e2e.operator.tenant import Json, Tenant, digests, engine
from e2e.operator.waiting import until
from e2e.scenarios import stack

NODE = kind.WORKERS[2]
MODEL = sources.model(20)


@pytest_asyncio.fixture
async def cache(s3: ObjectStore, tenant: Tenant) -> Json:
    """An endpoint that serves, and its cache on all nodes."""
    s3.put("lives", MODEL)
    await tenant.endpoint("llama", s3.source("lives"), replicas=3)
    await tenant.serves("llama", 3)
    cache = await tenant.cache("llama")
    await tenant.is_labelled(cache, nodes.workers())
    return cache


@pytest_asyncio.fixture
async def silent() -> AsyncIterator[None]:
    """Nobody speaks for `NODE` while this is in force."""
    await nodes.keep_agent_away(NODE, away=True)
    try:
        await nodes.agent_has_left(NODE)
        yield
    finally:
        await nodes.keep_agent_away(NODE, away=False)


async def test_a_node_that_joins_is_filled_and_counts_from_then_on(s3: ObjectStore, tenant: Tenant) -> None:
    s3.put("joins", MODEL)
    label = f"pool-{tenant.namespace}"
    others = sorted(nodes.workers() - {NODE})
    await stack.kubectl("label", "node", *others, f"{label}=yes")
    try:
        template = engine(nodeSelector={label: "yes"})
        await tenant.endpoint("llama", s3.source("joins"), replicas=2, template=template)
        await tenant.serves("llama", 2)
        cache = await tenant.cache("llama")
        await tenant.is_labelled(cache, set(others))
        await stack.kubectl("label", "node", NODE, f"{label}=yes")
        await tenant.is_labelled(cache, nodes.workers())
        # One that is a target no more keeps what it has until nobody wants it.
        await stack.kubectl("label", "node", others[0], f"{label}-")

        async def counted() -> bool:
            status = (await tenant.cache("llama"))["status"]
            return (status["target"], status["ready"]) == (2, 2)

        await until(counted, "two targets, both ready")
    finally:
        await stack.kubectl("label", "node", *sorted(nodes.workers()), f"{label}-")


async def test_a_disk_that_is_wiped_behind_our_back_is_seen_and_filled_again(
    s3: ObjectStore, tenant: Tenant, cache: Json
) -> None:
    before = s3.relay.passed
    # So that what is between can be seen.
    s3.relay.rate = 4e6
    await nodes.wipe(NODE, tenant.namespace)
    await tenant.is_labelled(cache, nodes.workers() - {NODE})

    async def cold_there() -> bool:
        pods = {pod["metadata"]["uid"]: pod["spec"]["nodeName"] for pod in await tenant.pods("llama")}
        return await tenant.warm("llama") == {uid: node != NODE for uid, node in pods.items()}

    await until(cold_there, "pods are warm but for those on that node")
    s3.relay.rate = None
    await tenant.is_labelled(cache, nodes.workers())
    assert s3.relay.passed - before < 1.2 * sources.total(MODEL)
    assert [one for one in await nodes.files(NODE, tenant.namespace) if one.endswith("/ready")]


async def test_after_a_reboot_a_node_counts_once_its_agent_has_looked_and_nothing_is_fetched(
    s3: ObjectStore, tenant: Tenant, cache: Json, silent: None
) -> None:
    before = s3.relay.passed
    await nodes.reboot(NODE)
    await tenant.is_labelled(cache, nodes.workers() - {NODE})
    lacking = (await tenant.cache("llama"))["status"]["notReady"]
    assert [(one["node"], one["reason"]) for one in lacking] == [(NODE, "AgentMissing")]
    await nodes.keep_agent_away(NODE, away=False)
    await tenant.is_labelled(cache, nodes.workers())
    assert s3.relay.passed == before


@pytest.mark.long
async def test_another_node_under_the_same_name_counts_once_its_agent_has_looked(
    s3: ObjectStore, tenant: Tenant, cache: Json
) -> None:
    before = s3.relay.passed
    (old,) = [one for one in await tenant.all("Node") if one["metadata"]["name"] == NODE]
    await nodes.replace(NODE)
    (new,) = [one for one in await tenant.all("Node") if one["metadata"]["name"] == NODE]
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    await tenant.is_labelled(cache, nodes.workers(), 180)
    said = await tenant.get("NodeModelCache", NODE)
    assert said is not None
    assert said["status"]["nodeUid"] == new["metadata"]["uid"]
    await tenant.serves("llama", 3)
    for pod in await tenant.pods("llama"):
        assert await tenant.loaded(pod) == digests(MODEL)
    # Its disk is the one that it had.
    assert s3.relay.passed == before
