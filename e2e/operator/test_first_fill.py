"""From five lines of modelCacheConfig to pods on nodes that had the weights before."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from cacheprep.api.names import DEFAULT_ROOT, IMAGE_READY
from cacheprep.plan.identity import store_path
from cacheprep.plan.jobs import UNPRIVILEGED
from e2e.cluster import kind
from e2e.cluster.command import ClusterError
from e2e.operator import nodes, sources
from e2e.operator.sources import ObjectStore
from e2e.operator.tenant import Json, Tenant, digests, engine, labels_of
from e2e.scenarios import stack
from tests.sources.hub import Hub

PROJECT = Path(__file__).parents[2]
CACHES: Json = {"weightsCache": {"enabled": True}, "imageCache": {"enabled": True}}


async def filled_before_pods(tenant: Tenant, name: str, replicas: int) -> None:
    """Wait until it serves, and see on the way that no Deployment is there before every node is ready."""
    serving = asyncio.create_task(tenant.serves(name, replicas))
    while not serving.done():
        deployed = await tenant.get("Deployment", name) is not None
        caches = await tenant.caches(name)
        if deployed:
            (cache,) = caches
            assert cache["status"]["ready"] == cache["status"]["target"] == len(nodes.workers())
        await asyncio.wait((serving,), timeout=0.2)
    await serving


def columns(said: str) -> list[list[str]]:
    return [line.split() for line in said.splitlines()]


async def status(*words: str) -> str:
    """What `cacheprep status` prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "cacheprep", "status", *words),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": str(kind.kubeconfig())},
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0
    return printed.decode()


async def test_weights_from_s3_are_on_every_node_before_the_first_pod_and_all_can_be_seen(
    s3: ObjectStore, tenant: Tenant
) -> None:
    model = sources.model(1)
    s3.put("first", model)
    before = s3.relay.passed
    await tenant.endpoint("llama", s3.source("first"), replicas=3, modelCacheConfig=CACHES)
    await filled_before_pods(tenant, "llama", 3)
    cache = await tenant.cache("llama")
    await tenant.is_labelled(cache, nodes.workers())
    # Each node has read it once.
    assert 3 * sources.total(model) <= s3.relay.passed - before < 3.3 * sources.total(model)

    pods = await tenant.pods("llama")
    for pod in pods:
        assert await tenant.loaded(pod) == digests(model)
        assert pod["spec"]["nodeName"] in nodes.workers()
    with pytest.raises(ClusterError, match="Read-only file system"):
        await tenant.kubectl(
            "exec", pods[0]["metadata"]["name"], "--container=engine", "--", "touch", "/model/x"
        )
    assert await tenant.warm("llama") == {pod["metadata"]["uid"]: True for pod in pods}
    for node in nodes.workers():
        found = await tenant.get("NodeModelCache", node)
        assert found is not None
        states = {one["key"]: one["state"] for one in found["status"]["caches"]}
        assert states[cache["status"]["key"]] == "ready"

    (image,) = await tenant.all("ModelImageCache")
    keeping = await tenant.all("Node", f"{IMAGE_READY}{image['metadata']['uid']}=true")
    assert {one["metadata"]["name"] for one in keeping} == nodes.workers()

    head, row = columns(await tenant.kubectl("get", "modeldatacacheconfigs"))
    assert head == ["NAME", "STATE", "TARGET", "READY", "AGE"]
    assert row[:4] == [cache["metadata"]["name"], "Ready", "3", "3"]
    head, row = columns(await tenant.kubectl("get", "modelimagecaches"))
    assert head == ["NAME", "PHASE", "CACHED", "TARGET", "AGE"]
    assert row[1:4] == ["Cached", "3", "3"]
    said = await status("llama", "--namespace", tenant.namespace)
    assert f"{tenant.namespace}/llama: Serving" in said
    for worker in nodes.workers():
        assert [worker, "ready"] in [line[:2] for line in columns(said)]
    assert "Next: nothing" in said
    # All that the Jobs were for is done.
    assert await tenant.all("Job") == []


async def test_a_commit_of_a_private_repository_of_a_hub_is_on_every_node_before_the_first_pod(
    hub: Hub, tenant: Tenant
) -> None:
    model = sources.model(2)
    source = sources.repository(hub, "acme/llama", model)
    await tenant.endpoint("llama", source, replicas=2)
    await filled_before_pods(tenant, "llama", 2)
    for pod in await tenant.pods("llama"):
        assert await tenant.loaded(pod) == digests(model)
    cache = await tenant.cache("llama")
    assert cache["status"]["revision"] == source["huggingFace"]["commitSHA"]
    assert cache["status"]["verification"] == "source-digest"
    # The token went to the Hub, and not to where its redirects lead.
    assert hub.tokens == []


async def test_data_that_is_on_a_node_already_is_not_fetched_again(s3: ObjectStore, tenant: Tenant) -> None:
    model = sources.model(3)
    s3.put("adopted", model)
    await tenant.endpoint("first", s3.source("adopted"), replicas=1)
    await tenant.serves("first", 1)
    before = s3.relay.passed
    await tenant.endpoint("second", s3.source("adopted"), replicas=1)
    await tenant.serves("second", 1)
    # It was listed again, and that is all.
    assert s3.relay.passed - before < sources.total(model) / 10
    first, second = await tenant.cache("first"), await tenant.cache("second")
    assert first["status"]["key"] == second["status"]["key"]
    # The files stay with the second when the first goes.
    await tenant.delete("first")
    await tenant.is_labelled(first, set())
    await tenant.is_labelled(second, nodes.workers())
    for pod in await tenant.pods("second"):
        assert await tenant.loaded(pod) == digests(model)
    assert not await labels_of(tenant, [first["metadata"]["uid"]])


@pytest_asyncio.fixture
async def claim(tenant: Tenant) -> AsyncIterator[str]:
    """The namespace forbids what is not restricted, and has the claim of manifests/operator/claim."""
    await tenant.move_in("restricted")
    text = (PROJECT / "manifests" / "operator" / "claim" / "claim.yaml").read_text()
    made = text.replace("namespace: llm", f"namespace: {tenant.namespace}")
    made = made.replace("warmroute-cache-llm", f"warmroute-cache-{tenant.namespace}")
    made = made.replace("warmroute/llm", f"warmroute/{tenant.namespace}")
    await stack.kubectl("create", "--filename=-", stdin=made)
    try:
        yield "warmroute-cache"
    finally:
        # After what uses it: the claim goes with the namespace.
        await tenant.move_out()
        await stack.kubectl("delete", "persistentvolume", f"warmroute-cache-{tenant.namespace}")
        await tenant.move_in()


async def test_in_a_restricted_namespace_all_goes_by_a_claim_and_nothing_runs_as_root(
    s3: ObjectStore, tenant: Tenant, claim: str
) -> None:
    model = sources.model(4)
    s3.put("restricted", model)
    template = engine()
    template["containers"][0]["securityContext"]["seccompProfile"] = {"type": "RuntimeDefault"}
    said: Json = {"replicas": 3, "modelCacheConfig": CACHES, "template": template}
    # By hostPath it is said what forbids it.
    await tenant.endpoint("llama", s3.source("restricted"), **said)
    refused = await tenant.says("llama", "PodSecurityForbidden", "PodSecurity")
    assert "hostPath" in refused["message"] or "runAsNonRoot" in refused["message"]
    await tenant.endpoint(
        "llama", s3.source("restricted"), cachePolicy={"mount": "pvc", "claimName": claim}, **said
    )
    await tenant.serves("llama", 3)
    cache = await tenant.cache("llama")
    await tenant.is_labelled(cache, nodes.workers())
    for pod in await tenant.pods("llama"):
        assert await tenant.loaded(pod) == digests(model)
    place = store_path(DEFAULT_ROOT, tenant.namespace)
    for node in nodes.workers():
        assert await nodes.on(node, f"stat -c %u {place}/warmroute-store") == f"{UNPRIVILEGED}\n"
    await tenant.delete("llama")
    await tenant.nothing_is_left()
