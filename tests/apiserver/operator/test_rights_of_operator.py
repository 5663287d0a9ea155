"""What the agents and the controller may do, with the rights and policies of manifests/operator."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from cacheprep.api.names import API_VERSION
from cacheprep.controller.controller import image_of
from cacheprep.objects import apply, delete, path
from extproc.pool.discovery.kubernetes import ApiError, Cluster, connected
from tests.apiserver.cluster import ApiServer
from tests.apiserver.operator.actors import Actors
from tests.apiserver.operator.identity import kubeconfig_of, token

As = Callable[..., AbstractAsyncContextManager[Cluster]]
AGENTS, OPERATOR = "warmroute-agents", "warmroute-operator"


@pytest.fixture
def as_account(admin: Cluster, operated: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> As:
    """The API server, as a ServiceAccount; with a node's name as a pod there."""

    @asynccontextmanager
    async def connect(namespace: str, account: str, node: str = "") -> AsyncIterator[Cluster]:
        granted = await token(admin, namespace, account, node)
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig_of(operated, granted, tmp_path)))
        async with connected() as cluster:
            yield cluster

    return connect


def report(name: str) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": "NodeModelCache", "metadata": {"name": name}, "spec": {}}


async def refused(cluster: Cluster, item: dict[str, Any], subresource: str = "") -> str:
    with pytest.raises(ApiError) as caught:
        await apply(cluster, item, subresource)
    assert caught.value.status == 403
    return str(caught.value)


async def test_an_agent_writes_the_object_of_its_own_node(actors: Actors, as_account: As) -> None:
    async with as_account(AGENTS, "cacheprep-agent", "node-a") as agent:
        await apply(agent, report("node-a"))
        await apply(agent, {**report("node-a"), "status": {"bootId": "x"}}, "status")


async def test_an_agent_writes_no_other_nodes_object(actors: Actors, as_account: As) -> None:
    async with as_account(AGENTS, "cacheprep-agent", "node-a") as agent:
        for item in (report("node-b"), report("node-that-is-not-there")):
            assert "its own node only, node-a, not" in await refused(agent, item)
        assert "its own node only" in await refused(agent, {**report("node-b"), "status": {}}, "status")


async def test_a_token_that_is_bound_to_no_pod_writes_nothing(actors: Actors, as_account: As) -> None:
    async with as_account(AGENTS, "cacheprep-agent") as agent:
        assert "must be bound to a pod" in await refused(agent, report("node-a"))


@pytest.mark.parametrize("kind", ["Node", "ModelDataCacheConfig", "InferenceEndpointConfig", "Pod"])
async def test_an_agent_writes_nothing_else(actors: Actors, as_account: As, kind: str) -> None:
    name = "node-a" if kind == "Node" else "llama"
    namespace = "" if kind == "Node" else actors.namespace
    async with as_account(AGENTS, "cacheprep-agent", "node-a") as agent:
        for method in ("DELETE", "PATCH"):
            with pytest.raises(ApiError, match="forbidden"):
                await agent.send(
                    method, path(kind, name, namespace), {"metadata": {}}, (), "application/merge-patch+json"
                )


async def test_the_controller_learns_which_image_it_runs_whoever_wrote_it_into_its_pod(
    admin: Cluster, actors: Actors, as_account: As
) -> None:
    name = f"cacheprep-controller-{actors.namespace}"
    context = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    image = "registry.example/mirror/cacheprep:1"
    spec = {
        "serviceAccountName": "cacheprep-controller",
        "containers": [
            {"name": "beside", "image": "other:1", "securityContext": context},
            {"name": "controller", "image": image, "securityContext": context},
        ],
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": OPERATOR},
        "spec": spec,
    }
    await admin.send("POST", path("Pod", namespace=OPERATOR), pod)
    try:
        async with as_account(OPERATOR, "cacheprep-controller") as controller:
            assert await image_of(controller, name) == image
    finally:
        await delete(admin, "Pod", name, OPERATOR)


@pytest.mark.parametrize("account", [(AGENTS, "cacheprep-agent"), (OPERATOR, "cacheprep-controller")])
async def test_nobody_of_the_operator_reads_secrets(
    actors: Actors, as_account: As, account: tuple[str, str]
) -> None:
    async with as_account(*account) as cluster:
        for namespace in (actors.namespace, "kube-system"):
            with pytest.raises(ApiError, match="forbidden"):
                await cluster.send("GET", f"/api/v1/namespaces/{namespace}/secrets")


@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"labels": {"kubernetes.io/os": "windows"}}},
        {"metadata": {"labels": {"kubernetes.io/os": None}}},
        {"metadata": {"labels": {"example.com/pool": "gpu"}}},
        {"metadata": {"annotations": {"example.com/x": "y"}}},
        {"spec": {"unschedulable": True}},
        {"spec": {"taints": [{"key": "x", "effect": "NoExecute"}]}},
    ],
    ids=["changes a label", "takes a label", "sets a label", "annotates", "cordons", "taints"],
)
async def test_the_controller_changes_nothing_of_nodes_but_its_own_labels(
    actors: Actors, as_account: As, patch: dict[str, Any]
) -> None:
    where, content = path("Node", "node-a"), "application/merge-patch+json"
    async with as_account(OPERATOR, "cacheprep-controller") as controller:
        for value in ("true", None):
            own = {"metadata": {"labels": {"warmroute.dev/weights-cache-ready.x": value}}}
            await controller.send("PATCH", where, own, (), content)
        with pytest.raises(ApiError, match=r"may set labels warmroute.dev/\* of nodes"):
            await controller.send("PATCH", where, patch, (), content)
