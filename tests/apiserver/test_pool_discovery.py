"""Endpoints from Kubernetes, with a real API server."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from extproc.config import InferencePoolConfig, PodsConfig
from extproc.pool.discovery import kubernetes
from tests.apiserver.cluster import PICKER, ApiServer, Link, Namespace
from tests.apiserver.told import watching
from tests.envoy.process import Process, eventually, free_address
from tests.test_epp import ask, pinned, request

LABELS = {"app": "llama"}


def llama(namespace: Namespace) -> InferencePoolConfig:
    return InferencePoolConfig(name="llama", namespace=namespace.name)


@pytest.mark.usefixtures("kubeconfig")
async def test_the_ready_pods_that_the_pool_selects_are_endpoints_on_each_target_port(
    namespace: Namespace,
) -> None:
    await namespace.pool(LABELS, [8000, 8001])
    await namespace.pool({"app": "other"}, [9000], name="other")
    await namespace.pod("a", "10.0.0.1")
    await namespace.pod("six", "fd00::1")
    await namespace.pod("starting", "10.0.0.2", ready=False)
    await namespace.pod("without-address")
    await namespace.pod("of-another", "10.0.0.3", labels={"app": "other"})
    await namespace.pod(
        "one-port", "10.0.0.4", annotations={"inference.networking.k8s.io/active-ports": "8001, 9999,x"}
    )
    async with watching(llama(namespace)) as told:
        await told.until(
            *("10.0.0.1:8000", "10.0.0.1:8001", "[fd00::1]:8000", "[fd00::1]:8001", "10.0.0.4:8001")
        )
    assert len(told.all) == 1


@pytest.mark.usefixtures("kubeconfig")
async def test_a_pod_is_an_endpoint_from_ready_until_it_is_told_to_stop(namespace: Namespace) -> None:
    await namespace.pool(LABELS, [8000])
    await namespace.pod("a", "10.0.0.1")
    async with watching(llama(namespace)) as told:
        await told.until("10.0.0.1:8000")
        await namespace.pod("b", ready=False)
        await namespace.status("b", "10.0.0.2", ready=False)
        await namespace.status("b", "10.0.0.2", ready=True)
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")
        await namespace.status("b", "10.0.0.2", ready=False)
        await told.until("10.0.0.1:8000")
        await namespace.status("b", "10.0.0.2", ready=True)
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")
        await namespace.stop("a", seconds=600)
        await told.until("10.0.0.2:8000")
        assert (await namespace.core.read_namespaced_pod("a", namespace.name)).status.pod_ip == "10.0.0.1"
        await namespace.stop("b", seconds=0)
        await told.until()
    assert len(told.all) == 6


@pytest.mark.usefixtures("kubeconfig")
async def test_a_pool_that_changes_what_it_selects_has_other_endpoints_and_none_in_between(
    namespace: Namespace,
) -> None:
    await namespace.pool(LABELS, [8000])
    await namespace.pod("a", "10.0.0.1")
    await namespace.pod("b", "10.0.0.2", labels={"app": "llama-2", "tier": "gpu"})
    async with watching(llama(namespace)) as told:
        await told.until("10.0.0.1:8000")
        await namespace.pool(LABELS, [8080])
        await told.until("10.0.0.1:8080")
        await namespace.pool({"app": "llama-2", "tier": "gpu"}, [8080])
        await told.until("10.0.0.2:8080")
        await namespace.pod("c", "10.0.0.3", labels={"app": "llama-2", "tier": "gpu"})
        await namespace.pod("d", "10.0.0.4")
        await told.until("10.0.0.2:8080", "10.0.0.3:8080")
    assert () not in told.all


@pytest.mark.usefixtures("kubeconfig")
async def test_a_pool_is_unknown_until_it_exists_and_empty_once_it_is_deleted(namespace: Namespace) -> None:
    await namespace.pod("a", "10.0.0.1")
    async with watching(llama(namespace)) as told, watching(llama(namespace)) as witness:
        await namespace.pool({"app": "nobody"}, [8000], name="another")
        await namespace.pool(LABELS, [8000])
        await told.until("10.0.0.1:8000")
        await witness.until("10.0.0.1:8000")
        await namespace.delete_pool()
        await told.until()
        await namespace.pool(LABELS, [8001])
        await told.until("10.0.0.1:8001")
    assert told.all == [("10.0.0.1:8000",), (), ("10.0.0.1:8001",)]


@pytest.mark.usefixtures("kubeconfig")
async def test_pods_can_be_selected_without_a_pool(namespace: Namespace) -> None:
    await namespace.pod("a", "10.0.0.1", labels={"app": "x", "tier": "gpu"})
    await namespace.pod("b", "10.0.0.2", labels={"app": "x", "tier": "test"})
    source = PodsConfig(selector="app in (x, y),tier!=test", ports=(8000,), namespace=namespace.name)
    async with watching(source) as told:
        await told.until("10.0.0.1:8000")
        await namespace.pod("c", "10.0.0.3", labels={"app": "y"})
        await told.until("10.0.0.1:8000", "10.0.0.3:8000")


@pytest.mark.usefixtures("kubeconfig")
async def test_more_pods_than_fit_into_one_answer_are_all_found(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "PAGE", 2)
    await namespace.pool(LABELS, [8000])
    for number in range(1, 6):
        await namespace.pod(f"pod-{number}", f"10.0.0.{number}")
    async with watching(llama(namespace)) as told:
        await told.until(*(f"10.0.0.{number}:8000" for number in range(1, 6)))
    assert len(told.all) == 1


@pytest.mark.usefixtures("kubeconfig")
async def test_a_pod_larger_than_a_network_buffer_is_read_whole(namespace: Namespace) -> None:
    await namespace.pool(LABELS, [8000])
    async with watching(llama(namespace)) as told:
        await told.until()
        await namespace.pod("a", "10.0.0.1", annotations={"padding": "x" * 250_000})
        await told.until("10.0.0.1:8000")


# --- When Kubernetes cannot be asked ---


async def test_without_the_right_to_look_a_pool_is_unknown_until_it_is_granted(
    namespace: Namespace, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(PICKER)))
    await namespace.pool(LABELS, [8000])
    await namespace.pod("a", "10.0.0.1")
    with capture_logs() as logs:
        async with watching(llama(namespace)) as told:

            def refused() -> bool:
                return any("403" in line.get("error", "") and line["path"].endswith("pools") for line in logs)

            await eventually(refused, "it is said that the pool may not be read", 30)
            assert told.all == []
            await namespace.allow()
            await told.until("10.0.0.1:8000")


async def test_what_changed_while_kubernetes_was_out_of_reach_is_learnt_after(
    namespace: Namespace, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(server.address)
    await link.open()
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig("admin-token", link.address)))
    await namespace.pool(LABELS, [8000])
    await namespace.pod("a", "10.0.0.1")
    await namespace.pod("b", "10.0.0.2")
    async with watching(llama(namespace)) as told:
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")
        await link.cut()
        await namespace.stop("a", seconds=0)
        await namespace.pod("c", "10.0.0.3")
        assert len(told.all) == 1
        await link.open()
        await told.until("10.0.0.2:8000", "10.0.0.3:8000")
        await link.cut()
        await namespace.stop("b", seconds=0)
        # What happened since is not known to etcd any more when the watch is taken up: 410.
        await server.forget()
        await link.open()
        await told.until("10.0.0.3:8000")
        await namespace.pod("d", "10.0.0.4")
        await told.until("10.0.0.3:8000", "10.0.0.4:8000")
        await link.cut()
    assert () not in told.all


@pytest.mark.usefixtures("kubeconfig")
async def test_an_api_server_that_starts_anew_takes_no_endpoint_away(
    namespace: Namespace, server: ApiServer
) -> None:
    await namespace.pool(LABELS, [8000])
    await namespace.pod("a", "10.0.0.1")
    async with watching(llama(namespace)) as told:
        await told.until("10.0.0.1:8000")
        await server.restart()
        await namespace.pod("b", "10.0.0.2")
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")
    assert len(told.all) == 2


# --- The command ---


async def test_the_endpoint_picker_of_a_pool_picks_its_ready_pods(
    namespace: Namespace, server: ApiServer, tmp_path: Path
) -> None:
    await namespace.allow()
    await namespace.pod("a", "10.0.0.1")
    addresses = [free_address() for _ in range(3)]
    ports = [address.rpartition(":")[2] for address in addresses]
    flags = ["--grpc-port", ports[0], "--grpc-health-port", ports[1], "--metrics-port", ports[2]]
    flags += ["--pool-name", "llama", "--pool-namespace", namespace.name, "--secure-serving=false"]
    with Process(
        "extproc epp",
        [sys.executable, "-m", "extproc", "epp", *flags],
        tmp_path / "log",
        {"KUBECONFIG": str(server.kubeconfig(PICKER))},
    ) as picker:
        async with grpc.aio.insecure_channel(addresses[1]) as channel:
            health = health_pb2_grpc.HealthStub(channel)

            async def status(service: str) -> int:
                try:
                    answer = await health.Check(health_pb2.HealthCheckRequest(service=service), timeout=5)
                except grpc.aio.AioRpcError:
                    return -1
                return int(answer.status)

            async def alive() -> bool:
                return bool(await status("liveness") == health_pb2.HealthCheckResponse.SERVING)

            async def ready() -> bool:
                return bool(await status("inference-extension") == health_pb2.HealthCheckResponse.SERVING)

            await eventually(alive, "the picker runs", 60, process=picker)
            assert not await ready()
            await namespace.pool(LABELS, [8000])
            await eventually(ready, "the picker knows its pool", 60, process=picker)

        def pick() -> list[str]:
            with grpc.insecure_channel(addresses[0]) as channel:
                return pinned(ask(channel, request())[0])

        assert await asyncio.to_thread(pick) == ["10.0.0.1:8000"]
        await namespace.pod("b", "10.0.0.2")

        async def both() -> bool:
            return set(await asyncio.to_thread(pick)) == {"10.0.0.1:8000", "10.0.0.2:8000"}

        await eventually(both, "the new pod is an endpoint", 30, process=picker)
