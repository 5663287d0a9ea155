"""What the router has to be allowed, and that this is enough: a ServiceAccount with just these rules.

The rules are those of docs/kubernetes.md, read from there.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from kubernetes_asyncio.config import incluster_config

from extproc.config import ConfigMapConfig, InferencePoolConfig, PodsConfig, ServiceConfig
from extproc.pool.discovery import config_map, kubernetes
from tests.apiserver.cluster import ApiServer, Namespace, endpoint
from tests.apiserver.told import Told, watching
from tests.envoy.process import eventually

PAGE = Path(__file__).parents[2] / "docs" / "kubernetes.md"


def documented(form: str) -> list[str]:
    """The rules in the table of the page for this form."""
    (row,) = re.findall(rf"^\| `{re.escape(form)}`.*$", PAGE.read_text(), flags=re.MULTILINE)
    rules: list[str] = re.findall(r"`(\{apiGroups: .*?\})`", row)
    assert rules
    return rules


@pytest.fixture
async def in_pod(
    namespace: Namespace, server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a process finds in a pod of this namespace that runs as the ServiceAccount `router`."""
    (tmp_path / "token").write_text(await namespace.token())
    (tmp_path / "namespace").write_text(namespace.name)
    host, _, port = server.address.rpartition(":")
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setattr(kubernetes, "_NAMESPACE", tmp_path / "namespace")
    monkeypatch.setattr(incluster_config, "SERVICE_TOKEN_FILENAME", str(tmp_path / "token"))
    monkeypatch.setattr(incluster_config, "SERVICE_CERT_FILENAME", str(server.ca))


@pytest.mark.usefixtures("in_pod")
async def test_a_service_needs_its_endpoint_slices_and_warm_nodes_need_no_more(namespace: Namespace) -> None:
    await namespace.allow(*documented("endpoints.service"))
    await namespace.slice("a", endpoint("10.0.0.1", "a"))
    await namespace.slice(
        "w", endpoint("10.0.0.1", "a"), service="llama-warm", manager="cacheprep.warmroute.dev"
    )
    async with watching(ServiceConfig(name="llama", port="http"), node_cache=True) as told:
        await told.until("10.0.0.1:8000")
        await told.until_caches(_1="warm")
        await namespace.slice("a", endpoint("10.0.0.1", "a"), endpoint("10.0.0.2"))
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")


@pytest.mark.usefixtures("in_pod")
async def test_pods_need_pods(namespace: Namespace) -> None:
    await namespace.allow(*documented("endpoints.pods"))
    await namespace.pod("a", "10.0.0.1")
    async with watching(PodsConfig(selector="app=llama", ports=(8000,))) as told:
        await told.until("10.0.0.1:8000")
        await namespace.pod("b", "10.0.0.2")
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")


@pytest.mark.usefixtures("in_pod")
@pytest.mark.parametrize("names", ["", ", resourceNames: [llama]"], ids=["any", "by its name"])
async def test_an_inference_pool_needs_itself_and_pods(namespace: Namespace, names: str) -> None:
    (rule,) = documented("endpoints.inferencePool")
    await namespace.allow(rule.replace(", verbs", f"{names}, verbs"), *documented("endpoints.pods"))
    await namespace.pool({"app": "llama"}, [8000])
    await namespace.pod("a", "10.0.0.1")
    async with watching(InferencePoolConfig(name="llama")) as told:
        await told.until("10.0.0.1:8000")
        await namespace.pool({"app": "llama"}, [8001])
        await told.until("10.0.0.1:8001")


@pytest.mark.usefixtures("in_pod")
async def test_without_the_right_to_slices_pods_are_found_and_their_nodes_unknown(
    namespace: Namespace,
) -> None:
    await namespace.allow(*documented("endpoints.pods"))
    await namespace.pod("a", "10.0.0.1")
    async with watching(PodsConfig(selector="app=llama", ports=(8000,)), node_cache=True) as told:
        await told.until("10.0.0.1:8000")
        await eventually(
            lambda: told.state == {"pods": "watching", "endpointslices": "forbidden"}, "both were tried", 30
        )
        await namespace.pod("b", "10.0.0.2")
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")
        assert told.found[-1].node_caches == {}


@pytest.mark.usefixtures("in_pod")
async def test_settings_need_the_one_config_map_by_its_name(namespace: Namespace) -> None:
    await namespace.allow(*documented("settingsFrom.configMap"))
    seen: list[object] = []
    told = Told()

    async def follow(name: str) -> None:
        await config_map.watch(ConfigMapConfig(name=name), seen.append, observer=told)

    task = asyncio.create_task(follow("llama-routing"))
    try:
        await eventually(lambda: seen == [None], "it is known that there is none", 30)
        await namespace.config_map({"secret": "x"}, name="another")
        await namespace.config_map({"settings.yaml": "strategy: RANDOM"})
        await eventually(lambda: seen[-1] == {"settings.yaml": "strategy: RANDOM"}, f"{seen}", 30)
        await namespace.delete_config_map()
        await eventually(lambda: seen[-1] is None, f"{seen}", 30)
        assert len(seen) == 3
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    task = asyncio.create_task(follow("another"))
    try:
        await eventually(lambda: told.state["configmaps"] == "forbidden", "any other is forbidden", 30)
        assert len(seen) == 3
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
