"""What becomes of an endpoint in a cluster whose API server is real, and whose nodes the test plays."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta

import pytest

from cacheprep.api.names import COMPONENT, FINALIZER, WEIGHTS_READY
from cacheprep.plan.possession import SILENT_SECONDS
from cacheprep.store.layout import State
from tests.apiserver.operator.actors import Actors, key, listing
from tests.apiserver.operator.running import Keeper
from tests.apiserver.operator.stories import (
    condition,
    enforce,
    has,
    labels,
    loads,
    nothing_is_left,
    some_cold,
    until,
    warm,
)
from tests.envoy.process import eventually


async def test_five_lines_bring_the_weights_to_every_node_before_the_pods(
    actors: Actors, keeper: Keeper
) -> None:
    await actors.endpoint(replicas=2)

    async def resolved() -> bool:
        return any(job["metadata"]["labels"][COMPONENT] == "fill" for job in await actors.all("Job"))

    await eventually(lambda: has(actors, "Job"), "a Job lists the source")
    assert [job["metadata"]["labels"][COMPONENT] for job in await actors.all("Job")] == ["resolve"]
    await actors.jobs()
    await eventually(resolved, "Jobs fill the nodes")
    assert await actors.all("Deployment") == []
    await until(actors, keeper, loads(actors, key(actors.source)), "it serves")
    cache = (await actors.all("ModelDataCacheConfig"))[0]
    assert cache["status"]["state"] == "Ready"
    assert await labels(actors, WEIGHTS_READY) == {
        name: [WEIGHTS_READY + cache["metadata"]["uid"]] for name in ("node-a", "node-b")
    }
    (deployment,) = await actors.all("Deployment")
    spec = deployment["spec"]["template"]["spec"]
    (ensure,) = spec["initContainers"]
    assert ensure["name"] == "warmroute-ensure"
    affinity = spec["affinity"]["nodeAffinity"]
    assert "requiredDuringSchedulingIgnoredDuringExecution" not in affinity
    weights = {one["weight"] for one in affinity["preferredDuringSchedulingIgnoredDuringExecution"]}
    assert weights == {100, 50}
    assert sorted((await warm(actors)).values()) == [True, True]


async def test_a_settled_endpoint_costs_no_writes(actors: Actors, keeper: Keeper) -> None:
    await actors.endpoint()
    await until(actors, keeper, loads(actors, key(actors.source)), "it serves")
    done = len(keeper.hand.done)
    for _ in range(10):
        await actors.act()
        await asyncio.sleep(0.1)
    settled = len(keeper.hand.done)
    for _ in range(10):
        await actors.report("node-a")
        await asyncio.sleep(0.1)
    assert len(keeper.hand.done) == settled, keeper.hand.done[done:]


async def test_a_changed_source_is_cached_before_pods_move_and_the_old_one_goes_after(
    actors: Actors, keeper: Keeper
) -> None:
    await actors.endpoint()
    old = key(actors.source)
    await until(actors, keeper, loads(actors, old), "it serves")
    seen: list[tuple[str, bool]] = []
    actors.source = listing("two")
    new = key(actors.source)

    async def moved() -> bool:
        # At every moment a pod is there, and its node has what it loads.
        for pod in await actors.all("Pod"):
            loaded = pod["metadata"].get("annotations", {}).get("warmroute.dev/cache-key")
            if loaded and pod["metadata"]["labels"].get("warmroute.dev/endpoint"):
                seen.append((loaded, loaded in actors.disks[pod["spec"]["nodeName"]]))
        return await loads(actors, new)()

    await actors.endpoint(modelSource={"s3": {"uri": "s3://weights/llama/v2/"}})
    await until(actors, keeper, moved, "pods load the new weights")
    assert {loaded for loaded, _ in seen} == {old, new}
    assert all(there for _, there in seen)
    assert all(set(disk) == {new} for disk in actors.disks.values())


async def test_a_deleted_endpoint_leaves_nothing(actors: Actors, keeper: Keeper) -> None:
    await actors.endpoint(replicas=2)
    await until(actors, keeper, loads(actors, key(actors.source)), "it serves")
    found = await actors.get("InferenceEndpointConfig", "llama")
    assert found is not None
    # Of ours, and nobody's annotations.
    assert found["metadata"]["finalizers"] == [FINALIZER]
    assert not found["metadata"].get("annotations")
    await actors.delete_endpoint()
    await until(actors, keeper, lambda: nothing_is_left(actors), "nothing is left of it")


async def test_a_namespace_that_is_deleted_first_holds_nothing_up(actors: Actors, keeper: Keeper) -> None:
    await actors.endpoint(replicas=2)
    await until(actors, keeper, loads(actors, key(actors.source)), "it serves")
    # From now on nothing can be created there, Events included.
    await actors.cluster.send("DELETE", f"/api/v1/namespaces/{actors.namespace}")
    await actors.delete_endpoint()
    await until(actors, keeper, lambda: nothing_is_left(actors), "nothing is left of it")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(1, 20))])
async def test_a_controller_that_dies_again_and_again_comes_to_the_same_end(
    actors: Actors, keeper: Keeper, seed: int
) -> None:
    draw = random.Random(seed)
    deaths = 0

    async def mortal(holds: Callable[[], Awaitable[object]]) -> Callable[[], Awaitable[object]]:
        async def dies() -> object:
            nonlocal deaths
            if keeper.hand.dead.is_set():
                deaths += 1
                await keeper.kill()
                keeper.start(draw)
            return await holds()

        return dies

    await keeper.kill()
    keeper.start(draw)
    await actors.endpoint(replicas=2)
    await until(actors, keeper, await mortal(loads(actors, key(actors.source))), "it serves", 60)
    old = key(actors.source)
    actors.source = listing("two")
    await actors.endpoint(replicas=2, modelSource={"s3": {"uri": "s3://weights/llama/v2/"}})
    await until(actors, keeper, await mortal(loads(actors, key(actors.source))), "it serves anew", 60)
    assert old not in {found for disk in actors.disks.values() for found in disk}
    assert sorted((await warm(actors)).values()) == [True, True]
    await actors.delete_endpoint()
    await until(actors, keeper, await mortal(lambda: nothing_is_left(actors)), "nothing is left", 60)
    assert deaths >= 5


async def test_a_node_whose_disk_was_wiped_is_filled_again_and_is_cold_meanwhile(
    actors: Actors, keeper: Keeper
) -> None:
    await actors.endpoint(replicas=2)
    await until(actors, keeper, loads(actors, key(actors.source)), "it serves")
    actors.disks["node-a"].clear()
    await actors.report("node-a")

    async def cold() -> bool:
        return (await labels(actors, WEIGHTS_READY))["node-a"] == []

    await eventually(cold, "the label has gone")
    await eventually(lambda: some_cold(actors), "its pod is told to be cold")
    assert len(await actors.all("Deployment")) == 1

    async def filled() -> bool:
        return actors.disks["node-a"] == {key(actors.source): State.READY} and not await some_cold(actors)

    await until(actors, keeper, filled, "it is filled again")


async def test_why_a_job_failed_is_said_by_the_endpoint_and_in_one_event_with_what_to_do(
    actors: Actors, keeper: Keeper
) -> None:
    actors.failing = {"node-a": 3, "node-b": 3}
    actors.last_words = "AccessDenied: s3://weights/llama/: 403 Forbidden"
    await actors.endpoint()

    async def told() -> bool:
        found = await condition(actors, "Cached")
        return found is not None and found["reason"] == "AccessDenied"

    await until(actors, keeper, told, "the condition says so")
    found = await condition(actors, "Cached")
    assert found is not None
    assert "s3://weights/llama/: 403 Forbidden. Give the ServiceAccount or Secret" in found["message"]
    events = [one for one in await actors.all("Event") if one["reason"] == "AccessDenied"]
    assert {(one["type"], one["involvedObject"]["kind"]) for one in events} == {
        ("Warning", "InferenceEndpointConfig")
    }
    assert "403 Forbidden. Give the ServiceAccount" in events[0]["message"]


async def test_how_pods_are_replaced_changes_at_once_and_their_template_does_not(
    actors: Actors, keeper: Keeper
) -> None:
    await actors.endpoint()
    await until(actors, keeper, loads(actors, key(actors.source)), "it serves")
    (before,) = await actors.all("Deployment")
    await actors.endpoint(cachePolicy={"rollover": "breakBeforeMake"})
    wanted = {"maxSurge": 0, "maxUnavailable": "25%"}

    async def changed() -> bool:
        (now,) = await actors.all("Deployment")
        return bool(now["spec"]["strategy"]["rollingUpdate"] == wanted)

    await until(actors, keeper, changed, "the strategy is another one")
    (after,) = await actors.all("Deployment")
    assert after["spec"]["template"] == before["spec"]["template"]
    container = {"name": "vllm", "image": "vllm:2"}
    template = {"template": {"spec": {"containers": [container]}}}
    await actors.endpoint(cachePolicy={"rollover": "breakBeforeMake"}, engine=template)

    async def rolled() -> bool:
        (now,) = await actors.all("Deployment")
        return bool(now["spec"]["template"]["spec"]["containers"][0]["image"] == "vllm:2")

    await until(actors, keeper, rolled, "another image is rolled out all the same")
    assert await changed()


async def test_a_node_whose_agent_has_fallen_silent_is_not_ready_until_it_is_heard(
    actors: Actors, keeper: Keeper
) -> None:
    await actors.endpoint()
    await until(actors, keeper, loads(actors, key(actors.source)), "it serves")
    await keeper.kill()
    await actors.report("node-b", datetime.now(UTC) - timedelta(seconds=SILENT_SECONDS))
    # A controller that was not there before goes by what the agent said itself.
    keeper.start()

    async def unlabelled() -> bool:
        found = await condition(actors, "Cached")
        silent = found is not None and (found["status"], found["reason"]) == ("Unknown", "AgentSilent")
        return silent and (await labels(actors, WEIGHTS_READY))["node-b"] == []

    await eventually(unlabelled, "node-b is not called prepared any more")
    assert len((await labels(actors, WEIGHTS_READY))["node-a"]) == 1
    assert not [one for one in await actors.all("Job") if not one["metadata"].get("deletionTimestamp")]
    await actors.report("node-b")

    async def labelled() -> bool:
        return len((await labels(actors, WEIGHTS_READY))["node-b"]) == 1

    await eventually(labelled, "it is called prepared again")


async def test_a_namespace_that_forbids_host_paths_is_told_so_and_gets_no_jobs_until_it_does_not(
    actors: Actors, keeper: Keeper
) -> None:
    await enforce(actors, "restricted")
    await actors.endpoint()

    async def told() -> bool:
        found = await condition(actors, "PodSecurityForbidden")
        return found is not None and found["status"] == "True"

    await until(actors, keeper, told, "the condition says so")
    found = await condition(actors, "PodSecurityForbidden")
    assert found is not None
    assert "violates PodSecurity" in found["message"]
    assert await actors.all("Deployment") == []
    await enforce(actors, "privileged")
    await actors.endpoint(replicas=1)
    await until(actors, keeper, loads(actors, key(actors.source)), "it serves")
    assert await condition(actors, "PodSecurityForbidden") is None


async def test_somebody_elses_service_of_that_name_is_left_alone_and_named(
    actors: Actors, keeper: Keeper
) -> None:
    spec = {"ports": [{"port": 80}], "selector": {"app": "theirs"}}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "llama"}, "spec": spec}
    where = f"/api/v1/namespaces/{actors.namespace}/services"
    await actors.cluster.send("POST", where, service)
    await actors.endpoint()

    async def told() -> bool:
        found = await condition(actors, "Available")
        return found is not None and found["reason"] == "NameTaken"

    await until(actors, keeper, told, "the condition names it")
    there = await actors.get("Service", "llama")
    assert there is not None
    assert there["spec"]["selector"] == {"app": "theirs"}
