"""The controller where the API server refuses, forgets, or is told something by somebody else meanwhile."""

from __future__ import annotations

import asyncio
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cacheprep.api.names import WEIGHTS_READY
from cacheprep.controller.controller import LEASE
from cacheprep.controller.lease import LEASE_SECONDS
from cacheprep.objects import path
from extproc.pool.discovery.kubernetes import Cluster
from tests.apiserver.cluster import ApiServer
from tests.apiserver.operator.actors import Actors, key
from tests.apiserver.operator.identity import kubeconfig_of, token
from tests.apiserver.operator.running import Keeper
from tests.apiserver.operator.stories import condition, labels, loads, until
from tests.envoy.process import Process, eventually, free_address


async def test_what_vanished_while_nobody_watched_is_noticed(
    actors: Actors, keeper: Keeper, operated: ApiServer
) -> None:
    await actors.endpoint()
    await until(actors, keeper, loads(actors, key(actors.source)), "it serves")
    # The watches end without a word, and what is deleted meanwhile is told by nobody.
    operated.process.kill()
    await operated.restart()
    where = path("NodeModelCache", "node-b")
    await actors.cluster.send("DELETE", where)
    await operated.forget()

    async def unlabelled() -> bool:
        return (await labels(actors, WEIGHTS_READY))["node-b"] == []

    await eventually(unlabelled, "node-b is not called prepared any more", 60)
    assert (await labels(actors, WEIGHTS_READY))["node-a"] != []


async def test_an_edit_between_plan_and_write_is_neither_lost_nor_undone(
    actors: Actors, keeper: Keeper
) -> None:
    await actors.endpoint()
    content = "application/merge-patch+json"
    edited = 0

    async def served() -> bool:
        nonlocal edited
        edited += 1
        patch = {"metadata": {"annotations": {"example.com/edit": str(edited)}}}
        where = path("InferenceEndpointConfig", "llama", actors.namespace)
        await actors.cluster.send("PATCH", where, patch, (), content)
        return await loads(actors, key(actors.source))()

    await until(actors, keeper, served, "it serves", 60)
    found = await actors.get("InferenceEndpointConfig", "llama")
    assert found is not None
    assert found["metadata"]["annotations"] == {"example.com/edit": str(edited)}
    # Plans whose status was refused were made again, and tell of nothing twice.
    told: dict[str, list[str]] = {}
    for event in sorted(await actors.all("Event"), key=lambda one: int(one["metadata"]["resourceVersion"])):
        condition, said = event["message"].partition(":")[0].split(" is ")
        told.setdefault(condition, []).append(f"{said} {event['reason']}")
    assert {"GateOpen", "Cached", "Available"} <= told.keys()
    assert all(earlier != later for each in told.values() for earlier, later in pairwise(each)), told


async def test_a_right_that_lacks_is_named_and_the_rest_goes_on(
    actors: Actors, keeper: Keeper, admin: Cluster
) -> None:
    role = "/apis/rbac.authorization.k8s.io/v1/clusterroles/warmroute-cacheprep-controller"
    rules = dict(await admin.send("GET", role))["rules"]
    less = [rule for rule in rules if "daemonsets" not in rule["resources"]]
    less.append({"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["list", "watch"]})
    content = "application/merge-patch+json"
    await admin.send("PATCH", role, {"rules": less}, (), content)
    try:
        await actors.endpoint()

        async def told() -> bool:
            found = await condition(actors, "Forbidden")
            return found is not None and found["status"] == "True"

        await until(actors, keeper, told, "the condition says so")
        found = await condition(actors, "Forbidden")
        assert found is not None
        assert 'cannot patch resource "daemonsets" in API group "apps"' in found["message"]
        await until(actors, keeper, loads(actors, key(actors.source)), "it serves all the same")
    finally:
        await admin.send("PATCH", role, {"rules": rules}, (), content)
    await actors.endpoint(replicas=2)

    async def silent() -> bool:
        return await condition(actors, "Forbidden") is None

    await until(actors, keeper, silent, "nothing is refused any more")


@pytest.fixture
async def replica(admin: Cluster, operated: ApiServer, tmp_path: Path) -> Any:
    """Starts `cacheprep controller` with the rights of the manifests."""
    granted = await token(admin, "warmroute-operator", "cacheprep-controller")
    config = kubeconfig_of(operated, granted, tmp_path)
    processes: list[Process] = []

    def start() -> Process:
        words = [sys.executable, "-m", "cacheprep", "controller", "--listen", free_address()]
        number = len(processes)
        made = Process(
            f"replica-{number}", words, tmp_path / f"replica-{number}.log", {"KUBECONFIG": str(config)}
        )
        processes.append(made)
        return made

    yield start
    for process in processes:
        process.kill()


async def holder(admin: Cluster) -> str:
    leases = await admin.send("GET", path("Lease", namespace="warmroute-operator"))
    found = [one["spec"].get("holderIdentity") for one in leases["items"] if one["metadata"]["name"] == LEASE]
    return found[0] or "" if found else ""


async def test_of_two_replicas_one_acts_and_the_other_takes_over_when_it_is_gone(
    actors: Actors, admin: Cluster, replica: Any
) -> None:
    first = replica()

    async def led() -> bool:
        return await holder(admin) != ""

    await eventually(led, "one leads", 60, process=first)
    leader = await holder(admin)
    second = replica()
    await eventually(lambda: "controller" in second.tail(), "the other waits", 60, process=second)
    first.kill()

    async def taken() -> bool:
        return await holder(admin) not in ("", leader)

    began = asyncio.get_running_loop().time()
    await eventually(taken, "the other leads", 60, process=second)
    # Not before the dead one must have stopped by itself.
    assert asyncio.get_running_loop().time() - began > LEASE_SECONDS / 2
    await actors.endpoint()
    await eventually(lambda: listed(actors), "it acts", process=second)


async def listed(actors: Actors) -> bool:
    return bool(await actors.all("Job"))
