"""An API server that knows the operator's kinds, and a namespace for each test in which everybody acts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml
from kubernetes_asyncio import client as api

from extproc.pool.discovery.kubernetes import Cluster, connected
from tests.apiserver import cluster
from tests.apiserver.attachment.kubectl import ROOT
from tests.apiserver.cluster import ADMIN, ApiServer
from tests.apiserver.operator.actors import Actors, kubelet
from tests.apiserver.operator.running import Keeper
from tests.envoy.process import eventually

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if reason := cluster.missing():
        pytest.skip(reason)
    running = ApiServer(tmp_path_factory.mktemp("apiserver"))
    try:
        asyncio.run(_start(running))
        yield running
    finally:
        running.kill()


async def _start(server: ApiServer) -> None:
    await server.ready()
    files = sorted((ROOT / "manifests" / "operator" / "crds").glob("warmroute.dev_*.yaml"))
    async with cluster.admin(server) as client:
        known = api.ApiextensionsV1Api(client)
        for file in files:
            await known.create_custom_resource_definition(yaml.safe_load(file.read_text()))

        async def established() -> bool:
            listed = await known.list_custom_resource_definition()
            return all(
                any(
                    one.type == "Established" and one.status == "True" for one in item.status.conditions or ()
                )
                for item in listed.items
            )

        await eventually(established, "the kinds are known", 60, process=server.process)


@pytest.fixture
async def admin(server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """The API server, as its administrator."""
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(ADMIN)))
    async with connected() as made:
        yield made


@pytest.fixture
async def actors(admin: Cluster, tmp_path: Path) -> AsyncIterator[Actors]:
    """A namespace, in which everybody acts but the operator; two nodes."""
    namespace = f"llm-{next(_numbers)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    await admin.send("POST", "/api/v1/namespaces", body)
    made = Actors(admin, namespace)
    async with kubelet(made, tmp_path):
        for name in ("node-a", "node-b"):
            await made.node(name)
        yield made
        await made.leave_nothing()


@pytest.fixture
async def keeper(admin: Cluster, actors: Actors) -> AsyncIterator[Keeper]:
    """A controller that can be killed and started."""
    made = Keeper(admin)
    made.start()
    yield made
    await made.kill()
