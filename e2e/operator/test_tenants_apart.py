"""Tenants who mean harm: no object, name, source or link of theirs writes or deletes what is another's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from cacheprep.api.names import API_VERSION, DEFAULT_ROOT
from cacheprep.plan.identity import store_path
from e2e.cluster import kind
from e2e.operator import nodes, sources
from e2e.operator.installation import AGENT, AGENTS
from e2e.operator.sources import ObjectStore
from e2e.operator.tenant import Json, Tenant, digests, engine, on_node
from e2e.operator.waiting import until
from e2e.scenarios import stack
from extproc.pool.discovery.kubernetes import ApiError
from tests.sources.hub import Hub

NODE = kind.WORKERS[0]
MODEL = sources.model(90)
ONE = engine(**on_node(NODE))


@pytest_asyncio.fixture
async def victim(s3: ObjectStore, tenant: Tenant) -> AsyncIterator[Tenant]:
    """Another tenant, whose model serves; afterwards all of it has to be there still."""
    other = Tenant(tenant.cluster, f"{tenant.namespace}-victim")
    await other.move_in()
    s3.put("victim", MODEL)
    try:
        await other.endpoint("llama", s3.source("victim"), replicas=1, template=ONE)
        await other.serves("llama", 1)
        before = await nodes.files(NODE, other.namespace)
        yield other
        (pod,) = await other.pods("llama")
        assert await other.loaded(pod) == digests(MODEL)
        assert await other.labelled(await other.cache("llama")) == {NODE}
        assert await nodes.files(NODE, other.namespace) == before
    finally:
        await other.move_out()


@pytest.mark.parametrize(
    "place",
    [
        "/opt/dlami/nvme/../../../etc",
        "/opt/dlami/nvme/./warmroute",
        "/opt/dlami/nvme/",
        "relative",
        "/",
        "//opt/dlami/nvme",
        "/opt/dlami/nvme:rw",
        "/opt/dlami/nvme\n/etc",
    ],
)
async def test_a_host_path_that_leads_elsewhere_is_refused_or_said_not_to_be_allowed(
    s3: ObjectStore, tenant: Tenant, place: str
) -> None:
    caches = {"weightsCache": {"enabled": True, "hostPath": place}}
    try:
        await tenant.endpoint("llama", s3.source("none"), replicas=1, modelCacheConfig=caches)
    except ApiError as error:
        assert error.status == 422  # noqa: PT017 - the other way is good, too
        return
    said = await tenant.says("llama", "GateOpen", "HostPathNotAllowed", 30)
    assert DEFAULT_ROOT in said["message"]
    assert await tenant.all("Job") == []
    assert await tenant.all("Pod") == []


async def test_a_root_that_the_operator_does_not_have_gets_no_job_and_no_directory(
    s3: ObjectStore, tenant: Tenant
) -> None:
    caches = {"weightsCache": {"enabled": True, "hostPath": "/etc/kubernetes"}}
    await tenant.endpoint("llama", s3.source("none"), replicas=1, modelCacheConfig=caches)
    said = await tenant.says("llama", "GateOpen", "HostPathNotAllowed", 30)
    assert DEFAULT_ROOT in said["message"]
    assert await tenant.all("Job") == []
    assert "warmroute" not in await nodes.on(NODE, "ls /etc/kubernetes")


@pytest.mark.parametrize(
    "name", ["../../../../etc/escaped", "/etc/escaped", "a/../../escaped", "ready/../../x"]
)
async def test_a_source_whose_files_have_hostile_names_is_not_fetched(
    hub: Hub, tenant: Tenant, name: str
) -> None:
    source = sources.repository(hub, "evil/model", {"config.json": b"{}", name: b"#!/bin/sh"})
    await tenant.endpoint("llama", source, replicas=1, template=ONE)
    said = await tenant.says("llama", "Resolved", "InvalidRequest")
    assert said["status"] == "False"
    assert await tenant.jobs("fill") == []
    assert await nodes.files(NODE, tenant.namespace) == []


async def test_an_object_of_a_tenant_that_names_anothers_cache_releases_nothing(
    s3: ObjectStore, tenant: Tenant, victim: Tenant
) -> None:
    cache = await victim.cache("llama")
    key = cache["status"]["key"]
    spec = {**cache["spec"], "endpointRef": {"kind": "InferenceEndpointConfig", "name": "x", "uid": "x"}}
    metadata = {"name": "forged", "namespace": tenant.namespace}
    forged: Json = {"apiVersion": API_VERSION, "kind": "ModelDataCacheConfig", "metadata": metadata}
    await tenant.write({**forged, "spec": spec})
    status = {"state": "Releasing", "key": key, "target": 0, "ready": 0}
    await tenant.cluster.send(
        "PATCH",
        f"/apis/{API_VERSION}/namespaces/{tenant.namespace}/modeldatacacheconfigs/forged/status",
        {"status": status},
        (),
        "application/merge-patch+json",
    )
    # Its own cache of that key would go by it: here is one, which shows that the agent has acted.
    place = store_path(DEFAULT_ROOT, tenant.namespace)
    await _store(tenant, f"mkdir -p {place}/caches/{key}/model && touch {place}/caches/{key}/model/x")

    async def own_is_gone() -> bool:
        return not [one for one in await nodes.files(NODE, tenant.namespace) if key in one]

    await until(own_is_gone, "the agent has removed the tenant's own", 60)
    await tenant.kubectl("delete", "modeldatacacheconfig", "forged")


async def test_links_in_a_tenants_store_lead_the_agent_nowhere_else(
    s3: ObjectStore, tenant: Tenant, victim: Tenant
) -> None:
    key = (await victim.cache("llama"))["status"]["key"]
    place, other = store_path(DEFAULT_ROOT, tenant.namespace), store_path(DEFAULT_ROOT, victim.namespace)
    fake = "0" * 40
    await _store(
        tenant,
        f"rmdir {place}/trash && ln -s {other}/trash {place}/trash"
        f" && ln -s {other}/caches/{key} {place}/caches/{key}"
        f" && ln -s {other}/caches/made {place}/locks/{fake}.use"
        f" && mkdir -p {place}/caches/{fake}/model && touch {place}/caches/{fake}/model/x",
    )
    (agent,) = [pod for pod in await stack.pods(AGENTS, AGENT) if pod["spec"]["nodeName"] == NODE]

    async def tried() -> bool:
        said = await stack.kubectl("logs", agent["metadata"]["name"], f"--namespace={AGENTS}")
        return any("cache stays" in line and tenant.namespace in line for line in said.splitlines())

    # Nobody claims it, so it is to go, by way of `trash`.
    await until(tried, "the agent has tried to remove what nobody claims", 90)
    await nodes.on(
        NODE, f"rm {place}/trash {place}/caches/{key} {place}/locks/{fake}.use; mkdir {place}/trash"
    )

    async def cleared() -> bool:
        return await nodes.files(NODE, tenant.namespace) == []

    await until(cleared, "the tenant's store is gone once it is one again", 120)


async def _store(tenant: Tenant, script: str) -> None:
    """Have an empty store of the tenant's on `NODE`, and do this in it, as a pod of the tenant could."""
    place = store_path(DEFAULT_ROOT, tenant.namespace)
    directories = " ".join(f"{place}/{name}" for name in ("caches", "partial", "trash", "locks", "requests"))
    line = f"printf 'warmroute-store 1\\n' > {place}/warmroute-store"
    await nodes.on(NODE, f"set -e; mkdir -p {directories}; {line}; {script}")
