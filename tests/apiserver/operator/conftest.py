"""An API server with manifests/operator, and a namespace for each test in which everybody acts.

The controller has the rights that the manifests give it, and no others.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from extproc.pool.discovery.kubernetes import Cluster, connected
from tests.apiserver import cluster
from tests.apiserver.attachment.kubectl import ROOT, Kubectl
from tests.apiserver.cluster import ADMIN, ApiServer
from tests.apiserver.operator.actors import Actors, kubelet
from tests.apiserver.operator.identity import kubeconfig_of, token
from tests.apiserver.operator.running import Keeper

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def operated(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> ApiServer:
    """The API server, with manifests/operator."""
    binary = cluster.binary("kubectl")
    if binary is None:
        pytest.skip(
            "no kubectl: python -m tests.apiserver.build DIRECTORY, and name it in KUBEBUILDER_ASSETS"
        )
    kubectl = Kubectl(Path(binary), server.kubeconfig(ADMIN), tmp_path_factory.mktemp("kubectl"))
    kubectl("apply", "--server-side", "-k", str(ROOT / "manifests" / "operator"))
    kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    return server


@pytest.fixture
async def admin(operated: ApiServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Cluster]:
    """The API server, as its administrator."""
    monkeypatch.setenv("KUBECONFIG", str(operated.kubeconfig(ADMIN)))
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
async def keeper(
    admin: Cluster, actors: Actors, operated: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Keeper]:
    """A controller that can be killed and started."""
    granted = await token(admin, "warmroute-operator", "cacheprep-controller")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig_of(operated, granted, tmp_path)))
    async with connected() as own:
        made = Keeper(own)
        made.start()
        yield made
        await made.kill()
