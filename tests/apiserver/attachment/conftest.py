"""An API server that knows the kinds of gateways, and kubectl.

Apart from that of the other tests: these use the names that manifests/ has, of which there is one each.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from kubernetes_asyncio import client as api

from tests.apiserver import cluster, kinds
from tests.apiserver.attachment.kubectl import ROOT, Kubectl
from tests.apiserver.cluster import ADMIN, ApiServer
from tests.envoy.process import eventually


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    if reason := cluster.missing() or _missing():
        pytest.skip(reason)
    running = ApiServer(tmp_path_factory.mktemp("apiserver"))
    try:
        asyncio.run(_start(running))
        yield running
    finally:
        running.kill()


@pytest.fixture(scope="session")
def kubectl(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Kubectl:
    """As the administrator, with the namespaces that manifests/ speaks of."""
    binary = cluster.binary("kubectl")
    assert binary is not None
    made = Kubectl(Path(binary), server.kubeconfig(ADMIN), tmp_path_factory.mktemp("kubectl"))
    made("create", "namespace", "llm")
    made("apply", "-f", str(ROOT / "manifests" / "base" / "router" / "namespace.yaml"))
    return made


def _missing() -> str:
    if cluster.binary("kubectl") is not None and (_assets() / kinds.FILE).exists():
        return ""
    return (
        "no kubectl or no kinds: python -m tests.apiserver.build DIRECTORY, and name it in KUBEBUILDER_ASSETS"
    )


def _assets() -> Path:
    return Path(os.environ.get("KUBEBUILDER_ASSETS", "/nonexistent"))


async def _start(server: ApiServer) -> None:
    await server.ready()
    definitions = kinds.read(_assets())
    async with cluster.admin(server) as client:
        known = api.ApiextensionsV1Api(client)
        for definition in definitions:
            await known.create_custom_resource_definition(definition)

        async def established() -> bool:
            listed = await known.list_custom_resource_definition()
            return len(listed.items) == len(definitions) and all(
                any(
                    one.type == "Established" and one.status == "True" for one in item.status.conditions or ()
                )
                for item in listed.items
            )

        await eventually(established, "the kinds are known", 60, process=server.process)
