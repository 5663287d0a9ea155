"""What Jobs and pods do on one node at the same time, they do once."""

from __future__ import annotations

from e2e.cluster import kind
from e2e.operator import sources
from e2e.operator.sources import ObjectStore
from e2e.operator.tenant import Json, Tenant, digests, engine, on_node
from e2e.operator.waiting import until


def runs(pod: Json, container: str) -> bool:
    """Whether a container of a pod runs now."""
    status = pod.get("status") or {}
    states = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return any(one["name"] == container and "running" in one["state"] for one in states)


async def test_a_job_and_a_pod_that_race_on_one_node_fetch_once(s3: ObjectStore, tenant: Tenant) -> None:
    model = sources.model(10, files=24, size=1 << 20)
    s3.put("race", model)
    before = s3.relay.passed
    s3.relay.rate = 2e6
    # Pods need not wait for the Job.
    await tenant.endpoint(
        "llama",
        s3.source("race"),
        replicas=1,
        cachePolicy={"gate": "none"},
        template=engine(**on_node(kind.WORKERS[2])),
    )

    async def race() -> bool:
        pods = await tenant.all("Pod")
        return any(runs(pod, "cacheprep") for pod in pods) and any(
            runs(pod, "warmroute-ensure") for pod in pods
        )

    await until(race, "the Job and the pod's init container run at the same time")
    s3.relay.rate = None
    await tenant.serves("llama", 1)
    (pod,) = await tenant.pods("llama")
    assert await tenant.loaded(pod) == digests(model)
    assert s3.relay.passed - before < 1.2 * sources.total(model)
    await tenant.is_labelled(await tenant.cache("llama"), {kind.WORKERS[2]})
    assert await tenant.warm("llama") == {pod["metadata"]["uid"]: True}
