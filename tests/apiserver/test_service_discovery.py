"""Endpoints from the EndpointSlices of a Service, with a real API server."""

from __future__ import annotations

import asyncio
import math
import os
import socket
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from extproc.config import InferencePoolConfig, PodsConfig, ServiceConfig
from extproc.pool.discovery import kubernetes
from extproc.pool.discovery.found import Place
from tests.apiserver.cluster import ADMIN, PICKER, ApiServer, Link, Namespace, endpoint
from tests.apiserver.told import watching
from tests.envoy.process import eventually

ENDPOINT_SLICES = "{apiGroups: [discovery.k8s.io], resources: [endpointslices], verbs: [list, watch]}"
CACHEPREP = "cacheprep.warmroute.dev"
SECOND = 1.0
"""Within which a change reaches routing."""


def llama(namespace: Namespace, port: str | int = "http") -> ServiceConfig:
    return ServiceConfig(name="llama", namespace=namespace.name, port=port)


@pytest.mark.usefixtures("kubeconfig")
async def test_all_slices_of_a_service_are_its_endpoints_whoever_writes_them(namespace: Namespace) -> None:
    await namespace.slice(
        "a", endpoint("10.0.0.1", "a", ready=True), endpoint("10.0.0.2", ready=False), endpoint("10.0.0.3")
    )
    await namespace.slice("b", endpoint("fd00::1"), family="IPv6")
    await namespace.slice("c", endpoint("10.0.0.4"), endpoint("10.0.0.2", ready=True), manager="example.com")
    await namespace.slice("d", endpoint("10.0.0.9"), service="other")
    await namespace.slice("e", endpoint("10.0.0.8"), ports=[{"name": "metrics", "port": 9090}])
    async with watching(llama(namespace)) as told:
        await told.until(
            *("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000", "[fd00::1]:8000")
        )
        assert told.found[-1].places["10.0.0.1:8000"] == Place("a", "node-of-a", "zone-a")
        await eventually(lambda: told.state == {"endpointslices": "watching"}, "it watches", 30)
    assert len(told.all) == 1


@pytest.mark.usefixtures("kubeconfig")
async def test_a_rollout_takes_endpoints_over_one_by_one_and_never_leaves_none(namespace: Namespace) -> None:
    leaving = {"ready": False, "serving": True, "terminating": True}
    await namespace.slice("a", endpoint("10.0.0.1"))
    async with watching(llama(namespace)) as told:
        await told.until("10.0.0.1:8000")
        await namespace.slice("a", endpoint("10.0.0.1"), endpoint("10.0.0.2", ready=False))
        await namespace.slice("b", endpoint("10.0.0.2"))
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")
        await namespace.slice("a", endpoint("10.0.0.1", **leaving))
        await told.until("10.0.0.2:8000")
        # The last one is told to stop before the next is ready: it serves as long as it can.
        await namespace.slice("b", endpoint("10.0.0.2", **leaving))
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")
        await namespace.slice("a", endpoint("10.0.0.3"))
        await told.until("10.0.0.3:8000")
        await namespace.delete_slice("b")
        await namespace.slice("a", endpoint("10.0.0.3"), endpoint("10.0.0.4"))
        await told.until("10.0.0.3:8000", "10.0.0.4:8000")
    assert () not in told.all


@pytest.mark.usefixtures("kubeconfig")
async def test_a_service_is_unknown_until_it_exists_and_empty_with_nothing_in_it_and_once_it_is_deleted(
    namespace: Namespace,
) -> None:
    with capture_logs() as logs:
        async with watching(llama(namespace)) as told:

            def said() -> bool:
                return any("there is no such Service" in line.get("found", "") for line in logs)

            await eventually(said, "it is said that there is no such Service", 30)
            assert told.all == []
            # What Kubernetes writes for a Service whose selector finds nothing.
            await namespace.slice("a", ports=[])
            await told.until()
            await namespace.slice("a", endpoint("10.0.0.1"))
            await told.until("10.0.0.1:8000")
            await namespace.delete_slice("a")
            await told.until()
    assert told.all == [(), ("10.0.0.1:8000",), ()]


@pytest.mark.usefixtures("kubeconfig")
@pytest.mark.parametrize(
    ("ports", "found"), [([{"name": "http", "port": 8000}], "http (8000)"), ([], "none")]
)
async def test_a_port_that_the_service_has_not_got_is_said_and_takes_no_traffic_down(
    namespace: Namespace, ports: list[dict[str, Any]], found: str
) -> None:
    await namespace.slice("a", endpoint("10.0.0.1"), ports=ports)
    with capture_logs() as logs:
        async with watching(llama(namespace, 80)) as told:

            def said() -> bool:
                return any(f"without port 80; their ports are {found}" in str(line) for line in logs)

            await eventually(said, "it is said which ports there are", 30)
            assert told.all == []
            await namespace.slice("a", endpoint("10.0.0.1"), ports=[{"name": "http", "port": 80}])
            await told.until("10.0.0.1:80")


@pytest.mark.usefixtures("kubeconfig")
async def test_slices_of_names_are_left_out_with_a_word(namespace: Namespace) -> None:
    await namespace.slice("a", endpoint("engine.example"), family="FQDN")
    await namespace.slice("b", endpoint("10.0.0.1"))
    with capture_logs() as logs:
        async with watching(llama(namespace)) as told:
            await told.until("10.0.0.1:8000")
    (line,) = (line for line in logs if line["event"] == "Kubernetes object left out")
    assert "addressType FQDN: endpoints are IP addresses" in line["error"]


@pytest.mark.usefixtures("kubeconfig")
async def test_a_change_reaches_routing_within_a_second_also_in_a_burst_that_is_taken_over_in_few_steps(
    namespace: Namespace,
) -> None:
    await namespace.slice("a", endpoint("10.0.0.1"))
    loop = asyncio.get_running_loop()
    async with watching(llama(namespace)) as told:
        await told.until("10.0.0.1:8000")
        began = loop.time()
        await namespace.slice("b", endpoint("10.0.0.2"))
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")
        assert told.times[-1] - began < SECOND
        steps = len(told.all)
        began = loop.time()
        for number in range(3, 43):
            await namespace.slice("b", *(endpoint(f"10.0.0.{one}") for one in range(2, number)))
        written = loop.time()
        await told.until(*(f"10.0.0.{one}:8000" for one in range(1, 42)))
        assert told.times[-1] - written < SECOND
        most = 2 + (told.times[-1] - began) / kubernetes.BATCH_SECONDS
        assert len(told.all) - steps <= most


# --- Warm nodes ---


@pytest.mark.usefixtures("kubeconfig")
async def test_endpoints_are_warm_or_cold_by_the_slices_of_cacheprep(
    namespace: Namespace,
) -> None:
    await namespace.slice("a", endpoint("10.0.0.1", "a"), endpoint("10.0.0.2", "b"), endpoint("10.0.0.3"))
    async with watching(llama(namespace), node_cache=True) as told:
        await told.until("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")
        assert told.found[-1].node_caches == {}
        warm, cold = {"ready": True, "serving": True}, {"ready": False, "serving": False}
        await namespace.slice(
            *("w", endpoint("10.0.0.1", "a", **warm), endpoint("10.0.0.2", "b", **cold)),
            service="llama-warm",
            manager=CACHEPREP,
        )
        await told.until_caches(_1="warm", _2="cold")
        # Somebody else's slices of that name say nothing.
        await namespace.slice("x", endpoint("10.0.0.2", "b"), service="llama-warm", manager="example.com")
        await namespace.slice("w", endpoint("10.0.0.2", "b", **warm), service="llama-warm", manager=CACHEPREP)
        await told.until_caches(_1="cold", _2="warm")
        await namespace.delete_slice("w")
        await told.until_caches()
    assert {addresses[:3] for addresses in told.all} == {("10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000")}


@pytest.mark.usefixtures("kubeconfig")
@pytest.mark.parametrize("by_pool", [True, False], ids=["inferencePool", "pods"])
async def test_pods_are_warm_or_cold_by_the_slices_that_list_them(
    namespace: Namespace, by_pool: bool
) -> None:
    source: InferencePoolConfig | PodsConfig
    if by_pool:
        await namespace.pool({"app": "llama"}, [8000])
        source = InferencePoolConfig(name="llama", namespace=namespace.name)
    else:
        source = PodsConfig(selector="app=llama", ports=(8000,), namespace=namespace.name)
    await namespace.pod("a", "10.0.0.1")
    await namespace.pod("b", "10.0.0.2")

    async def listed(name: str, ready: bool) -> dict[str, object]:
        pod = await namespace.core.read_namespaced_pod(name, namespace.name)
        target = {"kind": "Pod", "name": name, "uid": pod.metadata.uid}
        return {"addresses": ["10.0.0.9"], "conditions": {"ready": ready}, "targetRef": target}

    async with watching(source, node_cache=True) as told:
        await told.until("10.0.0.1:8000", "10.0.0.2:8000")
        await namespace.slice("x", endpoint("10.0.0.9", "x"), service="other-warm", manager=CACHEPREP)
        await namespace.slice("w", await listed("a", True), service="any-warm", manager=CACHEPREP)
        await told.until_caches(_1="warm", _2="cold")
        await namespace.slice(
            "w", await listed("a", False), await listed("b", True), service="any-warm", manager=CACHEPREP
        )
        await told.until_caches(_1="cold", _2="warm")


# --- When Kubernetes cannot be asked ---


async def test_what_is_known_stays_while_the_api_server_is_away_which_is_said_once_and_when_it_is_back(
    namespace: Namespace, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "LONGEST_BACK_OFF", 0.5)
    link = Link(server.address)
    await link.open()
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(ADMIN, link.address)))
    await namespace.slice("a", endpoint("10.0.0.1"))
    with capture_logs() as logs:
        async with watching(llama(namespace)) as told:
            await told.until("10.0.0.1:8000")
            for forgotten in (False, True):
                await eventually(lambda: told.state.get("endpointslices") == "watching", "it watches", 30)
                await link.cut()
                await eventually(
                    lambda: told.state["endpointslices"] == "unreachable", "it is known that it is away", 30
                )
                await namespace.slice("a", endpoint("10.0.0.1"), endpoint(f"10.0.0.{2 + forgotten}"))
                if forgotten:
                    # What happened since is not known to etcd any more when the watch is taken up: 410.
                    await server.forget()
                await told.until_failures(told.failures + 3)
                await link.open()
                await told.until("10.0.0.1:8000", f"10.0.0.{2 + forgotten}:8000")
            await link.cut()
    events = [line["event"] for line in logs if line["event"].startswith("Kubernetes")]
    assert events[:4] == 2 * ["Kubernetes cannot be asked; what is known stays", "Kubernetes answers again"]
    assert len(told.all) == 3


async def test_a_service_is_unknown_while_the_api_server_is_away_from_the_start(
    namespace: Namespace, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(server.address)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(ADMIN, link.address)))
    await namespace.slice("a", endpoint("10.0.0.1"))
    async with watching(llama(namespace)) as told:
        await eventually(lambda: told.state.get("endpointslices") == "unreachable", "an attempt fails", 30)
        assert told.all == []
        await link.open()
        await told.until("10.0.0.1:8000")
        await link.cut()


async def test_a_right_that_is_taken_away_is_named_with_the_rule_to_add_and_what_is_known_stays(
    namespace: Namespace, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(server.address)
    await link.open()
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(PICKER, link.address)))
    await namespace.allow(ENDPOINT_SLICES)
    await namespace.slice("a", endpoint("10.0.0.1"))
    with capture_logs() as logs:
        async with watching(llama(namespace)) as told:
            await told.until("10.0.0.1:8000")
            await eventually(lambda: told.state.get("endpointslices") == "watching", "it watches", 30)
            await namespace.forbid()
            # A watch that runs is not ended by it: rights are looked at when one begins.
            await link.cut()
            await link.open()
            await eventually(
                lambda: told.state["endpointslices"] == "forbidden", "it is known to be forbidden", 30
            )
            await namespace.slice("a", endpoint("10.0.0.2"))
            await namespace.allow(ENDPOINT_SLICES)
            await told.until("10.0.0.2:8000")
            await link.cut()
    assert told.all == [("10.0.0.1:8000",), ("10.0.0.2:8000",)]
    (line,) = (line for line in logs if line["event"].startswith("Kubernetes forbids it"))
    assert line["missing"] == f"watch endpointslices in namespace {namespace.name}"
    assert ENDPOINT_SLICES in line["remedy"]
    assert "403" in line["error"]


async def test_who_may_list_and_not_watch_still_learns_of_changes(
    namespace: Namespace, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes, "LONGEST_BACK_OFF", 0.5)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(PICKER)))
    await namespace.allow(ENDPOINT_SLICES.replace("list, watch", "list"))
    await namespace.slice("a", endpoint("10.0.0.1"))
    with capture_logs() as logs:
        async with watching(llama(namespace)) as told:
            await told.until("10.0.0.1:8000")
            await namespace.slice("a", endpoint("10.0.0.2"))
            await told.until("10.0.0.2:8000")
    (line,) = (line for line in logs if line["event"].startswith("Kubernetes forbids it"))
    assert line["missing"].startswith("watch endpointslices")


@pytest.mark.usefixtures("kubeconfig")
async def test_the_kernel_asks_whether_a_silent_api_server_is_still_there(
    namespace: Namespace, server: ApiServer
) -> None:
    await namespace.slice("a", endpoint("10.0.0.1"))
    async with watching(llama(namespace)) as told:
        await eventually(lambda: told.state.get("endpointslices") == "watching", "it watches", 30)
        # The other connection is that of this test, which writes.
        assert min(map(patience, streams_to(server.address))) <= 30


def patience(stream: socket.socket) -> float:
    """Seconds of silence after which the kernel gives a connection up; it is closed here alone."""
    with stream:
        if not stream.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            return math.inf
        idle, between, times = (
            stream.getsockopt(socket.IPPROTO_TCP, option)
            for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
        )
    return idle + between * times


def streams_to(address: str) -> list[socket.socket]:
    """This process's connections to an address, each to be closed without closing the connection."""
    host, _, port = address.rpartition(":")
    found = []
    for link in Path("/proc/self/fd").iterdir():
        try:
            if not os.readlink(link).startswith("socket:"):
                continue
            stream = socket.socket(fileno=os.dup(int(link.name)))
        except OSError:  # closed since it was listed
            continue
        try:
            peer = stream.getpeername()
        except OSError:
            peer = None
        if peer == (host, int(port)):
            found.append(stream)
        else:
            stream.close()
    return found
