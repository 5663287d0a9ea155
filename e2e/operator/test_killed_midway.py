"""What works is killed in the middle; somebody goes on where it was."""

from __future__ import annotations

from e2e.cluster import kind
from e2e.operator import installation, nodes, sources
from e2e.operator.installation import AGENT, AGENTS, CONTROLLER, OPERATOR
from e2e.operator.sources import ObjectStore
from e2e.operator.tenant import Tenant, digests, engine, on_node
from e2e.operator.waiting import until
from e2e.scenarios import stack

NODE = kind.WORKERS[1]
PIECE = 1 << 20


async def begun(tenant: Tenant, s3: ObjectStore, name: str, seed: int) -> int:
    """An endpoint on one node, whose Job has fetched a part; returns what the source had given before."""
    model = sources.model(seed, files=48, size=PIECE)
    s3.put(name, model)
    before = s3.relay.passed
    s3.relay.rate = 4e6
    await tenant.endpoint(name, s3.source(name), replicas=1, template=engine(**on_node(NODE)))

    async def half() -> bool:
        return s3.relay.passed - before > 24 * PIECE

    await until(half, "half of the model has come")
    return before


async def test_a_fetch_that_is_killed_goes_on_with_what_it_had(s3: ObjectStore, tenant: Tenant) -> None:
    before = await begun(tenant, s3, "killed", 30)
    (job,) = await tenant.jobs("fill")
    (pod,) = await tenant.all("Pod", f"job-name={job['metadata']['name']}")
    await nodes.kill(NODE, pod)
    s3.relay.rate = None
    await tenant.serves("killed", 1)
    model = sources.model(30, files=48, size=PIECE)
    (pod,) = await tenant.pods("killed")
    assert await tenant.loaded(pod) == digests(model)
    # At most what 16 connections had begun came twice.
    assert s3.relay.passed - before < sources.total(model) + 20 * PIECE


async def test_a_jobs_pod_that_is_deleted_is_no_failure(s3: ObjectStore, tenant: Tenant) -> None:
    before = await begun(tenant, s3, "deleted", 31)
    (job,) = await tenant.jobs("fill")
    (pod,) = await tenant.all("Pod", f"job-name={job['metadata']['name']}")
    await installation.kill(tenant.namespace, pod["metadata"]["name"])
    s3.relay.rate = None
    await tenant.serves("deleted", 1)
    assert s3.relay.passed - before < sources.total(sources.model(31, files=48, size=PIECE)) + 20 * PIECE


async def test_an_agent_that_is_killed_while_its_node_is_filled_is_not_missed(
    s3: ObjectStore, tenant: Tenant
) -> None:
    await begun(tenant, s3, "agent", 32)
    for pod in await stack.pods(AGENTS, AGENT):
        if pod["spec"]["nodeName"] == NODE:
            await installation.kill(AGENTS, pod["metadata"]["name"])
    s3.relay.rate = None
    await tenant.serves("agent", 1)
    await tenant.is_labelled(await tenant.cache("agent"), {NODE})
    await installation.settled()


async def test_a_controller_that_is_killed_in_a_rollover_is_followed_by_one_that_ends_it(
    s3: ObjectStore, tenant: Tenant
) -> None:
    old, new = sources.model(33), sources.model(34, files=16, size=PIECE)
    s3.put("old", old)
    s3.put("new", new)
    await tenant.endpoint("llama", s3.source("old"), replicas=2)
    await tenant.serves("llama", 2)
    before = await tenant.cache("llama")
    s3.relay.rate = 8e6
    await tenant.change("llama", modelSource=s3.source("new"))
    await tenant.says("llama", "RollingOver", "FillingNext")
    await installation.kill_all(OPERATOR, CONTROLLER)
    s3.relay.rate = None

    async def over() -> bool:
        caches = await tenant.caches("llama")
        return [one["metadata"]["name"] for one in caches] != [before["metadata"]["name"]] and len(
            caches
        ) == 1

    await until(over, "the new cache has taken the place of the old one", 180)
    await tenant.serves("llama", 2)
    for pod in await tenant.pods("llama"):
        assert await tenant.loaded(pod) == digests(new)
    for node in nodes.workers():
        kept = {file for file in await nodes.files(node, tenant.namespace) if file.endswith("/ready")}
        assert len(kept) == 1
    await installation.settled()
