"""A real agent on a real file system, with the token of its pod and the rights of the manifests."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx
import pytest

from cacheprep.api.caches import DataCacheState
from cacheprep.api.names import API_VERSION, CACHE_KEY
from cacheprep.objects import apply, path
from cacheprep.plan.identity import store_path
from extproc.pool.discovery.kubernetes import Cluster
from tests.apiserver.cluster import ApiServer
from tests.apiserver.operator.actors import Actors
from tests.apiserver.operator.identity import kubeconfig_of, token
from tests.envoy.process import Process, eventually, free_address
from tests.store.origin import make_model
from tests.store.running import fetch, run, running


@pytest.fixture
def root(actors: Actors) -> Iterator[Path]:
    """A cache root with a model that was fetched for the namespace.

    In memory: of a disk that is full an agent takes what nobody claims.
    """
    with TemporaryDirectory(dir="/dev/shm") as directory:
        made = Path(directory, "nvme")
        make_model(made.parent / "model")
        done = fetch(f"file://{directory}/model", Path(store_path(str(made), actors.namespace)))
        assert done.returncode == 0, done.stderr
        yield made


@pytest.fixture
async def agent(
    admin: Cluster, actors: Actors, operated: ApiServer, root: Path, tmp_path: Path
) -> AsyncIterator[Process]:
    granted = await token(admin, "warmroute-agents", "cacheprep-agent", "node-a")
    # So far it was the test that spoke for the node.
    await admin.send("DELETE", path("NodeModelCache", "node-a"))
    address = free_address()
    words = [sys.executable, "-m", "cacheprep", "agent", "--node=node-a", f"--root={root}"]
    words += ["--allow-shared-disk", f"--listen={address}"]
    environment = {"KUBECONFIG": str(kubeconfig_of(operated, granted, tmp_path))}
    with Process("agent", words, tmp_path / "agent.log", environment) as made:
        made.name = address
        yield made


async def caches(actors: Actors) -> list[dict[str, Any]]:
    said = await actors.get("NodeModelCache", "node-a")
    return list(((said or {}).get("status") or {}).get("caches") or ())


async def claim(actors: Actors, root: Path, key: str, state: DataCacheState) -> None:
    """A ModelDataCacheConfig of the operator, in this state."""
    head = {"apiVersion": API_VERSION, "kind": "ModelDataCacheConfig"}
    metadata = {"name": "llama-1", "namespace": actors.namespace}
    spec = {
        "endpointRef": {"kind": "InferenceEndpointConfig", "name": "llama", "uid": "u"},
        "source": {"s3": {"uri": "s3://weights/llama/"}},
        "hostPath": str(root),
    }
    await apply(actors.cluster, {**head, "metadata": metadata, "spec": spec})
    status = {"state": state.value, "key": key}
    await apply(actors.cluster, {**head, "metadata": metadata, "status": status}, "status")


async def test_an_agent_tells_keeps_and_removes_what_is_on_its_disk(
    actors: Actors, agent: Process, root: Path
) -> None:
    async def told() -> bool:
        return [one["state"] for one in await caches(actors)] == ["ready"]

    await eventually(told, "the cache is told", 60, process=agent)
    said = await actors.get("NodeModelCache", "node-a")
    node = await actors.get("Node", "node-a")
    assert said is not None
    assert node is not None
    assert said["status"]["nodeUid"] == node["metadata"]["uid"]
    assert said["status"]["bootId"] == node["status"]["nodeInfo"]["bootID"]
    assert said["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]
    (status,) = said["status"]["roots"]
    assert status["usable"]
    assert 0 < status["availableBytes"] <= status["totalBytes"]
    async with httpx.AsyncClient(base_url=f"http://{agent.name}", trust_env=False) as client:
        assert (await client.get("/healthz")).status_code == 200
        assert (await client.get("/readyz")).status_code == 200
        page = (await client.get("/metrics")).text
    assert f'cacheprep_agent_caches{{root="{root}",state="ready"}} 1.0' in page
    (key,) = {one["key"] for one in await caches(actors)}

    # A pod uses it: it stays, though it is let go.
    pod = {
        "metadata": {"name": "engine", "namespace": actors.namespace, "annotations": {CACHE_KEY: key}},
        "spec": {"nodeName": "node-a", "containers": [{"name": "vllm", "image": "vllm:1"}]},
    }
    await actors.cluster.send("POST", path("Pod", namespace=actors.namespace), pod)
    await claim(actors, root, key, DataCacheState.READY)
    await claim(actors, root, key, DataCacheState.RELEASING)

    async def in_use() -> bool:
        return [one.get("inUse") for one in await caches(actors)] == [True]

    await eventually(in_use, "it is told to be in use", process=agent)
    store = Path(store_path(str(root), actors.namespace))
    assert (store / "caches" / key).is_dir()

    # It is wiped behind the agent's back, and fetched again.
    shutil.rmtree(store / "caches" / key)

    async def gone() -> bool:
        return await caches(actors) == []

    await eventually(gone, "the loss is told", 30, process=agent)
    again = fetch(f"file://{root.parent}/model", store)
    assert again.returncode == 0, again.stderr
    await eventually(told, "it is told again", 30, process=agent)

    # The pod ends: nothing of it is left, the namespace's store included.
    gently = {"gracePeriodSeconds": 0}
    await actors.cluster.send("DELETE", path("Pod", "engine", actors.namespace), gently)
    await eventually(gone, "it is removed", 30, process=agent)
    await actors.cluster.send("DELETE", path("ModelDataCacheConfig", "llama-1", actors.namespace))
    await eventually(lambda: not store.exists(), "its store is removed", 30, process=agent)


async def test_how_far_a_fetch_is_and_how_fast_is_told_while_it_runs_and_that_it_ended(
    actors: Actors, agent: Process, root: Path, tmp_path: Path
) -> None:
    make_model(tmp_path / "other", seed=2)
    store = Path(store_path(str(root), actors.namespace))
    slow = ("--bandwidth", "200kB", "--range-size", "64MiB", "--connections", "1", "--watermark", "100%")

    async def partial() -> list[dict[str, Any]]:
        return [one for one in await caches(actors) if one["state"] == "partial"]

    async def moves() -> bool:
        return any("bytesPerSecond" in one for one in await partial())

    with running("fetch", f"file://{tmp_path}/other", "--to", store, *slow, "--quiet"):
        await eventually(moves, "it is told that somebody fetches", 60, process=agent)
        (one,) = await partial()
        assert one["bytesTotal"] > 8_000_000
        assert one["bytesDone"] < one["bytesTotal"]

    async def stands() -> bool:
        found = await partial()
        return len(found) == 1 and "bytesPerSecond" not in found[0]

    await eventually(stands, "it is told that nobody does any more", 60, process=agent)


async def test_an_agent_that_is_told_to_stop_ends_well_and_leaves_what_it_said(
    actors: Actors, agent: Process, root: Path
) -> None:
    async def told() -> bool:
        return len(await caches(actors)) == 1

    await eventually(told, "the cache is told", 60, process=agent)
    agent.signal(signal.SIGTERM)
    assert await agent.exit_code(15) == 0
    assert await told()
    listed = run("ls", "--to", store_path(str(root), actors.namespace), "--json")
    assert '"ready": true' in listed.stdout
